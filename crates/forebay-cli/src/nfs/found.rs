//! The result of a probe, and its JSON form: docs/reference/nfs-probe-json.md.

use std::time::Duration;

use forebay_doctor::direct::pci_distance;
use forebay_doctor::{RealSystem, System};
use forebay_engine::Session;
use forebay_error::{Error, ErrorKind, Result};
use forebay_nfs::probe::{ProbeLatency, ProbeRate, SMALL, ServerProbe, WriteCost, probe_writes};
use forebay_nfs::{NfsOptions, NfsUrl, RdmaOptions, probe};
use serde_json::{Value, json};

use super::gpu::{self, Placed};
use super::nic::{self, Nic};

/// What a server does for a file.
pub(super) struct Found {
    pub(super) url: NfsUrl,
    pub(super) probe: ServerProbe,
    /// What writes cost; `None` where they were not asked for.
    pub(super) writes: Option<Result<WriteCost>>,
    /// This machine's RDMA devices; `None`, with the reason, where no byte came by RDMA.
    pub(super) nics: Option<Result<Vec<Nic>>>,
    /// The server's writes into the memory of GPUs; `None` as above.
    pub(super) gpus: Option<Result<Vec<Placed>>>,
}

impl Found {
    /// Looks: over TCP by 1, 4 and 8 connections, whatever FOREBAY_NFS_CONNECTIONS says, and by RDMA (this machine's, or that of a test).
    pub(super) fn look(
        url: &NfsUrl,
        options: &NfsOptions,
        write: bool,
        session: impl FnOnce() -> Result<Session>,
    ) -> Result<Self> {
        let probe = probe(url, options)?;
        let spoken = probe.versions.iter().find(|(_, found)| found.is_ok());
        let writes = spoken
            .filter(|_| write)
            .map(|(version, _)| probe_writes(url, options, probe.attributes.kind, *version));
        let (mut nics, mut gpus) = (None, None);
        if let Some(Ok(rate)) = &probe.rdma {
            let rdma = options.rdma.clone().map_or_else(RdmaOptions::of_machine, Ok)?;
            let only = NfsUrl { versions: vec![rate.version], ..url.clone() };
            nics = Some(nic::all(&rdma, probe.nic.as_ref()));
            let options = NfsOptions { rdma: Some(rdma), ..options.clone() };
            gpus = Some(session().and_then(|session| gpu::place(&session, &only, &options)));
        }
        Ok(Self { url: url.clone(), probe, writes, nics, gpus })
    }

    /// Whether the server gave other bytes than those that were written or read before.
    pub(super) fn is_corrupt(&self) -> bool {
        let writes = self.writes.iter().filter_map(|said| said.as_ref().err());
        let rdma = self.probe.rdma.iter().filter_map(|said| said.as_ref().err());
        let gpus = self.gpus.iter().flatten().flatten().filter_map(|gpu| gpu.result.as_ref().err());
        writes.chain(rdma).chain(gpus).any(|error| error.kind() == ErrorKind::Corrupt)
    }

    /// The report for programs.
    pub(super) fn json(&self) -> Value {
        let system = RealSystem;
        let probe = &self.probe;
        let versions = probe.versions.iter().map(|(version, said)| match said {
            Ok((limits, _)) => json!({
                "version": version.to_string(), "read_bytes": limits.read, "write_bytes": limits.write, "error": null
            }),
            Err(why) => json!({
                "version": version.to_string(), "read_bytes": null, "write_bytes": null, "error": error(why)
            }),
        });
        json!({
            "schema": "forebay.nfs-probe/1",
            "version": env!("CARGO_PKG_VERSION"),
            "kernel": system.uname().release,
            "arch": system.uname().machine,
            "url": self.url.to_string(),
            "kind": probe.attributes.kind.to_string(),
            "size": probe.attributes.size,
            "versions": versions.collect::<Vec<_>>(),
            "addresses": {
                "used": probe.addresses.0,
                "left_out": probe.addresses.1.iter().map(|out| json!({
                    "address": out.address, "reason": out.reason, "fix": out.hint
                })).collect::<Vec<_>>(),
            },
            "tcp": probe.rates.iter().map(of_rate).collect::<Vec<_>>(),
            "small_reads": probe.small.as_ref().map(|small| json!({
                "version": small.version.to_string(),
                "alone": of_latency(&small.alone),
                "connections": small.connections,
                "in_flight": small.in_flight,
                "iops": small.iops,
            })),
            "writes": self.writes.as_ref().map(|said| match said {
                Ok(cost) => of_writes(cost),
                Err(why) => json!({ "error": error(why) }),
            }),
            "rdma": probe.rdma.as_ref().map(|said| match said {
                Ok(rate) => json!({ "rate": of_rate(rate), "error": null }),
                Err(why) => json!({ "rate": null, "error": error(why) }),
            }),
            "nics": self.nics.as_ref().map(|nics| match nics {
                Ok(nics) => json!({ "list": nics, "error": null }),
                Err(why) => json!({ "list": null, "error": error(why) }),
            }),
            "gpus": self.gpus.as_ref().map(|gpus| match gpus {
                Ok(gpus) => json!({ "list": gpus.iter().map(|gpu| self.of_gpu(gpu)).collect::<Vec<_>>(), "error": null }),
                Err(why) => json!({ "list": null, "error": error(why) }),
            }),
        })
    }

    fn of_gpu(&self, gpu: &Placed) -> Value {
        let nics = self.nics.iter().flatten().flatten();
        let nic = nics.into_iter().find(|nic| nic.used).and_then(|nic| nic.pci.as_deref());
        let (rate, way, why) = match &gpu.result {
            Ok((rate, way)) => (Some(of_rate(rate)), Some(way), None),
            Err(why) => (None, None, Some(error(why))),
        };
        json!({
            "index": gpu.index,
            "name": gpu.name,
            "pci": gpu.pci,
            "nic_hops": nic.and_then(|nic| pci_distance(&RealSystem, &gpu.pci, nic)),
            "compared": why.is_none(),
            "rate": rate,
            "way": way,
            "keys": way.and_then(|way| way.split("keys: ").nth(1)?.split(';').next()),
            "error": why,
        })
    }
}

fn of_rate(rate: &ProbeRate) -> Value {
    json!({
        "version": rate.version.to_string(),
        "connections": rate.connections,
        "bytes": rate.bytes,
        "seconds": rate.elapsed.as_secs_f64(),
        "gb_per_s": rate.gb_per_s(),
        "cpu_s_per_gb": rate.cpu_per_gb(),
    })
}

fn of_latency(latency: &ProbeLatency) -> Value {
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    json!({ "bytes": SMALL, "count": latency.count, "p50_us": us(latency.p50), "p99_us": us(latency.p99) })
}

fn of_writes(cost: &WriteCost) -> Value {
    json!({
        "version": cost.version.to_string(),
        "connections": cost.connections,
        "bytes": cost.bytes,
        "seconds": cost.elapsed.as_secs_f64(),
        "gb_per_s": cost.gb_per_s(),
        "alone": of_latency(&cost.alone),
        "commits": cost.commits,
        "commit_us": (cost.commits > 0).then_some(cost.commit.as_secs_f64() * 1e6),
        "error": null,
    })
}

fn error(error: &Error) -> Value {
    json!({ "text": error.to_string(), "fixes": error.hints() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::{Arc, Mutex};

    use fake_nfs::{Fault, Placing, Server};
    use fake_verbs::Fake;
    use forebay_config::Config;
    use forebay_engine::Session;
    use forebay_nfs::{NfsUrl, RdmaOptions};

    use super::super::gpu::only_rdma;
    use super::super::{say, url};
    use super::*;
    use crate::console::Console;

    const DMA_BUF_SUPPORTED: i32 = 124;
    const LEN: usize = 5_000_011;

    struct Here {
        gpu: &'static fake_cuda::Fake,
        server: Arc<Server>,
        fabric: Fake,
        _placing: Placing,
        _alone: std::sync::MutexGuard<'static, ()>,
    }

    /// A server that takes RDMA, and a GPU that makes no dma-bufs yet. One test at a time has the GPU.
    fn here() -> Here {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let gpu = fake_cuda::install().unwrap();
        gpu.set_attribute(DMA_BUF_SUPPORTED, 0);
        let (server, fabric) = (Arc::new(Server::start()), Fake::new());
        server.put("/export/file", (0..LEN as u64).map(|at| ((at * at) >> 7) as u8).collect());
        let placing = Placing::start(&fabric, server.clone());
        Here { gpu, server, fabric, _placing: placing, _alone: alone }
    }

    impl Here {
        fn look(&self) -> Found {
            let url = NfsUrl::parse(&self.server.url("/export/file", "4.1")).unwrap();
            let rdma = RdmaOptions::by(Arc::new(self.fabric.clone()), Placing::address());
            let options = NfsOptions { rdma: Some(rdma), ..NfsOptions::default() };
            let session = || Session::with_config(only_rdma(Config::default()));
            Found::look(&url, &options, true, session).unwrap()
        }
    }

    /// Removes values that differ between runs, machines and ports.
    fn still(value: &mut Value) {
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    match (key.as_str(), &value) {
                        (
                            "seconds" | "gb_per_s" | "cpu_s_per_gb" | "iops" | "count" | "p50_us" | "p99_us"
                            | "commits" | "commit_us",
                            Value::Number(number),
                        ) => {
                            assert!(number.as_f64().unwrap() >= 0.0);
                            *value = Value::Null;
                        }
                        ("url" | "kernel" | "arch" | "pci", Value::String(text)) => {
                            assert!(!text.is_empty());
                            *value = "…".into();
                        }
                        ("version", Value::String(text)) if *text == env!("CARGO_PKG_VERSION") => {
                            *value = "…".into();
                        }
                        _ => still(value),
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(still),
            _ => {}
        }
    }

    fn json(found: &Found) -> Value {
        let mut value = found.json();
        still(&mut value);
        value
    }

    #[test]
    fn all_that_is_found_out_is_in_the_report() {
        let here = here();
        here.gpu.set_attribute(DMA_BUF_SUPPORTED, 1);
        let report = json(&here.look());
        insta::assert_snapshot!(serde_json::to_string_pretty(&report).unwrap());
    }

    #[test]
    fn every_gpu_is_told_with_its_rate_or_why_there_is_none() {
        let here = here();
        let gpu = |report: Value| report["gpus"]["list"][0].clone();
        let refused = gpu(json(&here.look()));
        assert_eq!(
            (&refused["compared"], &refused["rate"], &refused["keys"]),
            (&false.into(), &Value::Null, &Value::Null)
        );
        assert!(refused["error"]["text"].as_str().unwrap().contains("makes no dma-bufs"), "{refused}");
        assert!(refused["error"]["fixes"][0].as_str().unwrap().contains("open kernel modules"), "{refused}");
        here.gpu.set_attribute(DMA_BUF_SUPPORTED, 1);
        let placed = gpu(json(&here.look()));
        assert_eq!((&placed["compared"], &placed["rate"]["bytes"]), (&true.into(), &LEN.into()));
        assert!(placed["way"].as_str().unwrap().contains("NIC fake0; keys: per buffer"), "{placed}");
    }

    #[test]
    fn the_lines_have_nic_and_gpu() {
        let here = here();
        here.gpu.set_attribute(DMA_BUF_SUPPORTED, 1);
        let (mut out, mut err) = (Vec::new(), Vec::new());
        say(&here.look(), &Console::new(&mut out, &mut err));
        let out = String::from_utf8(out).unwrap();
        let of = |start: &str| {
            out.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start}: {out}"))
        };
        assert!(of("rdma  v4.1, 4 connections: ").contains(" GB/s at "));
        assert_eq!(
            of("nic "),
            format!(
                "nic   fake0 (InfiniBand or RoCE) has memory windows of type 2B; regions of at most {} bytes",
                u64::MAX
            )
        );
        assert!(of("gpu 0 v4.1").ends_with("NIC fake0; keys: per buffer"), "{out}");
    }

    #[test]
    fn what_is_not_found_out_is_null_with_its_reason() {
        let here = here();
        here.server.faults(|_| Some(Fault::Status(5)));
        let url = url(here.server.url("/export/file", "4.1").as_ref()).unwrap();
        assert!(Found::look(&url, &NfsOptions::default(), false, gpu::session).is_err());
        here.server.faults(|_| None);
        // The test's server has no RDMA, even if this machine does.
        let report = json(&Found::look(&url, &NfsOptions::default(), false, gpu::session).unwrap());
        assert!(report["rdma"]["error"]["text"].is_string() && report["rdma"]["rate"].is_null(), "{report}");
        assert!(report["writes"].is_null() && report["small_reads"]["alone"]["bytes"] == 4096, "{report}");
        assert!(report["nics"].is_null() && report["gpus"].is_null(), "{report}");
    }

    /// docs/reference/nfs-probe-json.md names each key.
    #[test]
    fn the_page_names_every_key() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/nfs-probe-json.md");
        let page = std::fs::read_to_string(page).unwrap();
        let here = here();
        let mut keys = Vec::new();
        collect(&json(&here.look()), &mut keys);
        for key in keys {
            assert!(
                page.contains(&format!("`{key}`")),
                "docs/reference/nfs-probe-json.md does not name {key}"
            );
        }
    }

    fn collect(value: &Value, keys: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    keys.push(key.clone());
                    collect(value, keys);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| collect(item, keys)),
            _ => {}
        }
    }
}
