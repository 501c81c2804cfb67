//! `forebay report s3-rdma`: objects of an endpoint by RDMA, with the counters of NICs and of TCP beside the bytes. `--kit` writes all of it, and
//! facts of the machine, into one file: what owners of NICs run and send back.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use forebay_doctor::machine::MachineFacts;
use forebay_doctor::{RealSystem, System};
use forebay_engine::{File, Session};
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::fill_pattern;
use forebay_objects::{Bucket, ObjectRdma, ObjectUrl, rdma_of};
use forebay_remote::stop;
use forebay_source::opener_of;
use serde::Serialize;
use serde_json::{Value, json};

use crate::console::{Console, Failure};
use crate::json_file::JsonFile;

/// Bytes of the objects: the last ones are uploaded in parts.
const SIZES: [usize; 5] = [4 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20];
/// How long an interrupted run waits for the removal of an object.
const PATIENCE: Duration = Duration::from_secs(2);
/// Where the kernel lists RDMA devices.
const CLASS: &str = "/sys/class/infiniband";
/// Of a pattern.
const KEY: u64 = 41;

/// One transfer.
#[derive(Debug, Serialize)]
struct Row {
    work: String,
    bytes: usize,
    /// All bytes are those that were written.
    same: bool,
    error: Option<String>,
    receipt: String,
    /// How NICs' counters changed, those that did.
    nics: BTreeMap<String, u64>,
    /// How many segments of TCP this machine got and sent, of all programs.
    tcp: BTreeMap<String, u64>,
    /// None where a NIC is emulated: its rates mean nothing.
    seconds: Option<f64>,
}

/// Runs it for objects below a prefix, which are removed in the end.
pub(crate) fn run(prefix: &Path, kit: Option<&Path>, console: &Console<'_>) -> Result<i32, Failure> {
    let url = ObjectUrl::parse(prefix).map_err(Failure::usage)?;
    if url.bucket.is_empty() {
        let error = Error::new(ErrorKind::InvalidInput, "the URL names no bucket").with("url", &url);
        return Err(Failure::usage(error.hint("forebay report s3-rdma s3://BUCKET/PREFIX/")));
    }
    let file = kit.map(|path| JsonFile::open(path, console)).transpose()?;
    if forebay_config::env::value("FOREBAY_S3_RDMA").is_none() {
        // SAFETY: this process has begun no thread that reads variables.
        unsafe { std::env::set_var("FOREBAY_S3_RDMA", "require") };
    }
    let found = match measure(&url, &SIZES) {
        Ok(found) => found,
        Err(error) => {
            // Where nothing goes by RDMA, the reason and the machine's facts are what is of use.
            if let Some(file) = file {
                file.write(
                    &Found { error: Some(error.to_string()), ..Found::default() }.document(),
                    console,
                )?;
            }
            return Err(error.into());
        }
    };
    for line in found.lines() {
        console.line(line);
    }
    if let Some(file) = file {
        file.write(&found.document(), console)?;
        console.line("the file has addresses and names of devices, and no keys: look at it, then send it");
    }
    Ok(i32::from(found.rows.iter().any(|row| row.error.is_some() || !row.same)))
}

/// All transfers, and the server's answers.
#[derive(Default)]
struct Found {
    rdma: Option<ObjectRdma>,
    rows: Vec<Row>,
    /// Why there are none.
    error: Option<String>,
}

impl Found {
    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(rdma) = &self.rdma {
            for (name, spoken) in &rdma.dialects {
                let said = spoken.as_ref().map_or_else(ToString::to_string, |()| "spoken".to_owned());
                lines.push(format!("{name:<14} {said}"));
            }
            lines.push(match &rdma.arrived {
                Ok(came) => {
                    format!("{:<14} {} bytes by {} over {}", "compared", came.bytes, came.dialect, came.nic)
                }
                Err(error) => format!("{:<14} no: {error}", "compared"),
            });
        }
        lines.push(format!(
            "{:<16} {:>9} {:<6} {:>14} {:>9}  receipt",
            "work", "bytes", "same", "NIC counters", "segments"
        ));
        for row in &self.rows {
            let nics: u64 =
                row.nics.iter().filter(|(name, _)| name.ends_with("_data")).map(|(_, by)| by * 4).sum();
            let segments: u64 = row.tcp.values().sum();
            let same = if row.same { "yes" } else { "NO" };
            let said = row.error.as_ref().unwrap_or(&row.receipt);
            let said =
                said.lines().find(|line| line.contains("RDMA")).or(said.lines().next()).unwrap_or_default();
            lines.push(format!(
                "{:<16} {:>9} {same:<6} {nics:>14} {segments:>9}  {}",
                row.work,
                row.bytes,
                said.trim()
            ));
        }
        lines
    }

    fn document(&self) -> Value {
        let system = RealSystem;
        let mut machine = serde_json::to_value(MachineFacts::probe(&system)).unwrap_or_default();
        if let Some(facts) = machine.as_object_mut() {
            // Names of endpoints, at the least.
            facts.remove("environment");
        }
        let said =
            |spoken: &Result<()>| spoken.as_ref().map_or_else(ToString::to_string, |()| "spoken".to_owned());
        let rdma = self.rdma.as_ref().map(|rdma| {
            let dialects: BTreeMap<_, _> =
                rdma.dialects.iter().map(|(name, spoken)| (*name, said(spoken))).collect();
            let arrived = match &rdma.arrived {
                Ok(came) => json!({ "bytes": came.bytes, "dialect": came.dialect, "nic": came.nic }),
                Err(error) => json!({ "error": error.to_string() }),
            };
            json!({ "dialects": dialects, "arrived": arrived })
        });
        json!({
            "schema": "forebay.s3-rdma-kit/1",
            "version": env!("CARGO_PKG_VERSION"),
            "kernel": system.uname().release,
            "arch": system.uname().machine,
            "machine": machine,
            "nics": nics(&system),
            "rdma": rdma,
            "error": self.error,
            "rows": self.rows,
        })
    }
}

/// Objects that are removed in the end.
struct Objects {
    bucket: Bucket,
    prefix: String,
    keys: Vec<String>,
}

impl Drop for Objects {
    fn drop(&mut self) {
        for key in &self.keys {
            let _ = stop::patiently(PATIENCE, || self.bucket.delete(key));
        }
    }
}

impl Objects {
    fn key(&mut self, len: usize) -> String {
        let key = format!("{}-{len}", self.prefix);
        self.keys.push(key.clone());
        key
    }
}

fn measure(url: &ObjectUrl, sizes: &[usize]) -> Result<Found> {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    let prefix = format!("{}forebay-s3-rdma-{:x}-{now:x}", url.key, std::process::id());
    let mut objects = Objects { bucket: Bucket::of_url(url)?, prefix, keys: Vec::new() };
    let session = Session::open()?;
    let (mut rdma, mut rows) = (None, Vec::new());
    for (number, len) in sizes.iter().enumerate() {
        let key = objects.key(*len);
        let mut bytes = vec![0; *len];
        fill_pattern(&mut bytes, KEY, number as u64);
        if number == 0 {
            // RDMA to an object, before others go by it.
            objects.bucket.put(&key, &bytes)?;
            rdma = rdma_of(&url.with_key(&key))?;
        }
        let name = objects.bucket.url(&key);
        let (written, _) = watched("PUT", *len, || put(&session, &name, &bytes).map(|receipt| (receipt, ())));
        if written.error.is_some() {
            objects.bucket.put(&key, &bytes)?;
        }
        // It is compared by the reads behind it.
        rows.push(Row { same: written.error.is_none(), ..written });
        let part = len / 4..len / 4 + len / 2;
        for (work, range) in [("GET", 0..*len), ("GET of a range", part)] {
            let (read, came) = watched(work, range.len(), || get(&session, &name, range.clone()));
            rows.push(Row { same: came.is_some_and(|came| came == bytes[range]), ..read });
        }
    }
    Ok(Found { rdma, rows, error: None })
}

/// Writes an object, by the engines that any program has. Returns the receipt.
fn put(session: &Session, name: &str, bytes: &[u8]) -> Result<String> {
    let opener = opener_of(name).ok_or_else(|| Error::new(ErrorKind::Internal, "nothing opens s3://"))?;
    let upload = opener.make(name.as_ref(), 0o644)?;
    let file = File::from_source(upload.source())?;
    let mut buffer = session.host_buffer(bytes.len())?;
    buffer.copy_from_slice(bytes)?;
    let receipt = session.write(&file, 0, &buffer)?.to_string();
    let notes = upload.finish(true)?;
    Ok(notes.into_iter().fold(receipt, |all, note| all + "\n" + &note))
}

/// Reads a range into memory that has other bytes before.
fn get(session: &Session, name: &str, range: Range<usize>) -> Result<(String, Vec<u8>)> {
    let file = File::open(name)?;
    let mut buffer = session.host_buffer(range.len())?;
    buffer.copy_from_slice(&vec![0x5A; range.len()])?;
    let receipt = session.read_into(&file, range.start as u64, &mut buffer, 0..range.len())?;
    Ok((receipt.to_string(), buffer.to_vec()?))
}

/// Does it, and looks at counters before and behind it.
fn watched<T>(work: &str, bytes: usize, act: impl FnOnce() -> Result<(String, T)>) -> (Row, Option<T>) {
    let system = RealSystem;
    let (nics_before, tcp_before, began) = (counters(&system), segments(&system), Instant::now());
    let done = act();
    let seconds = began.elapsed().as_secs_f64();
    let (error, receipt, came) = match done {
        Ok((receipt, came)) => (None, receipt, Some(came)),
        Err(error) => (Some(error.to_string()), String::new(), None),
    };
    let row = Row {
        work: work.to_owned(),
        bytes,
        same: false,
        error,
        receipt,
        nics: since(&nics_before, counters(&system)),
        tcp: since(&tcp_before, segments(&system)),
        seconds: has_real_nic(&system).then_some(seconds),
    };
    (row, came)
}

/// By how much counters are greater than before.
fn since(before: &BTreeMap<String, u64>, now: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let by = |(name, count): (String, u64)| {
        let more = count.saturating_sub(before.get(&name).copied().unwrap_or_default());
        (more > 0).then_some((name, more))
    };
    now.into_iter().filter_map(by).collect()
}

fn number(system: &dyn System, path: &str) -> Option<u64> {
    system.text(path)?.trim().parse().ok()
}

/// The ports of all devices, as paths.
fn ports(system: &dyn System) -> Vec<String> {
    let of_device = |device: String| {
        let ports = format!("{CLASS}/{device}/ports");
        system.list(&ports).into_iter().map(move |port| format!("{ports}/{port}"))
    };
    system.list(CLASS).into_iter().flat_map(of_device).collect()
}

/// Counters of all NICs: `mlx5_0/ports/1/counters/port_xmit_data`.
fn counters(system: &dyn System) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for folder in ports(system)
        .iter()
        .flat_map(|port| ["counters", "hw_counters"].map(|group| format!("{port}/{group}")))
    {
        for name in system.list(&folder) {
            let path = format!("{folder}/{name}");
            if let Some(count) = number(system, &path) {
                all.insert(path[CLASS.len() + 1..].to_owned(), count);
            }
        }
    }
    all
}

/// Segments of TCP that came and went.
fn segments(system: &dyn System) -> BTreeMap<String, u64> {
    let text = system.text("/proc/net/snmp").unwrap_or_default();
    let lines: Vec<Vec<&str>> =
        text.lines().filter(|line| line.starts_with("Tcp:")).map(|line| line.split(' ').collect()).collect();
    let [names, counts] = lines.as_slice() else { return BTreeMap::new() };
    let both = names.iter().zip(counts).filter(|(name, _)| matches!(**name, "InSegs" | "OutSegs"));
    both.filter_map(|(name, count)| Some(((*name).to_owned(), count.parse().ok()?))).collect()
}

/// A device of the kernel's own (rxe, siw) has no card.
fn has_real_nic(system: &dyn System) -> bool {
    let devices = system.list(CLASS);
    let is_card = |name: &String| {
        let base = format!("{CLASS}/{name}");
        system.exists(&format!("{base}/device")) && !system.exists(&format!("{base}/parent"))
    };
    !devices.is_empty() && devices.iter().all(is_card)
}

/// What devices say of themselves.
fn nics(system: &dyn System) -> Vec<Value> {
    let text = |path: String| system.text(&path).map(|text| text.trim().to_owned());
    let of_device = |device: String| {
        let base = format!("{CLASS}/{device}");
        let own: BTreeMap<_, _> = ["fw_ver", "board_id", "hca_type", "node_type"]
            .into_iter()
            .filter_map(|name| Some((name, text(format!("{base}/{name}"))?)))
            .collect();
        let ports = system.list(&format!("{base}/ports")).into_iter().map(|port| {
            let of = |name| text(format!("{base}/ports/{port}/{name}"));
            json!({ "port": port, "state": of("state"), "rate": of("rate"), "link_layer": of("link_layer"),
                    "interface": of("gid_attrs/ndevs/0"), "kind_of_gid": of("gid_attrs/types/0") })
        });
        json!({ "name": device, "is_emulated": !system.exists(&format!("{base}/device")), "says": own,
                "ports": ports.collect::<Vec<_>>() })
    };
    system.list(CLASS).into_iter().map(of_device).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fake_verbs::Fake;
    use forebay_gateway::{AccountEntry, Accounts, RdmaOptions, Server, ServerOptions, in_directory};

    use super::*;

    const SECRET: &str = "a secret of this test";

    /// A gateway in this process, to which the environment leads.
    fn serve(directory: &Path, fabric: &Fake) {
        let entry = AccountEntry::new("kit", SECRET);
        let accounts = Accounts::new(vec![entry], in_directory(directory, true)).unwrap();
        let mut options = ServerOptions::new(([127, 0, 0, 1], 0).into());
        let rdma = RdmaOptions::new(Arc::new(fabric.serving()), Some("10.0.0.1".parse().unwrap()));
        // The connection comes by loopback.
        options.rdma = Some(RdmaOptions { any_client: true, ..rdma });
        let server = Server::bind(options, &Arc::new(accounts)).unwrap();
        let endpoint = format!("http://{}", server.address());
        for (name, value) in [
            ("AWS_ENDPOINT_URL", endpoint.as_str()),
            ("AWS_ACCESS_KEY_ID", "kit"),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
            ("AWS_REGION", "us-east-1"),
            ("AWS_CONFIG_FILE", "/dev/null"),
            ("AWS_SHARED_CREDENTIALS_FILE", "/dev/null"),
            ("FOREBAY_S3_LOCAL", "off"),
            ("FOREBAY_S3_RDMA", "require"),
        ] {
            // SAFETY: no other test of this program has to do with S3.
            unsafe { std::env::set_var(name, value) };
        }
        std::thread::spawn(move || server.run(|| {}));
    }

    #[test]
    fn transfers_are_compared_and_the_file_has_no_secret() {
        let (folder, fabric) = (tempfile::tempdir().unwrap(), Fake::new());
        std::fs::create_dir(folder.path().join("bucket")).unwrap();
        serve(folder.path(), &fabric);
        forebay_objects::register();
        forebay_objects::use_fabric(Arc::new(fabric.clone()));
        let url = ObjectUrl::parse("s3://bucket/of/".as_ref()).unwrap();
        let sizes = [4 << 10, 1 << 20, 17 << 20];
        let found = measure(&url, &sizes).unwrap();
        assert_eq!(found.rows.len(), 3 * sizes.len());
        for row in &found.rows {
            assert!(row.same && row.error.is_none(), "{row:?}");
            // Objects of one request are sent behind their receipt: the fabric's counts have them.
            assert!(row.work == "PUT" || row.receipt.contains("RDMA"), "{row:?}");
            assert!(row.seconds.is_none(), "{row:?}");
        }
        let moved: usize = sizes.iter().sum();
        let counts = fabric.counts();
        assert!(counts.read as usize >= moved && counts.written as usize >= moved + moved / 2, "{counts:?}");
        let lines = found.lines().join("\n");
        assert!(lines.contains("rc1            spoken") && !lines.contains(" NO "), "{lines}");
        let text = found.document().to_string();
        assert!(!text.contains(SECRET) && text.contains("forebay.s3-rdma-kit/1"), "{text}");
        let left = std::fs::read_dir(folder.path().join("bucket")).unwrap().count();
        assert!(left <= 1, "objects were left");
    }

    #[test]
    fn the_file_of_a_machine_without_rdma_says_why() {
        let found = Found { error: Some("this machine has no RDMA device".into()), ..Found::default() };
        let document = found.document();
        assert_eq!(document["error"], "this machine has no RDMA device");
        assert!(document["kernel"].is_string() && document["machine"].is_object(), "{document}");
    }

    #[test]
    fn counters_beside_a_transfer_are_those_that_changed() {
        let counts =
            |list: &[(&str, u64)]| list.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        let (before, now) =
            (counts(&[("a", 1), ("b", 5), ("c", 9)]), counts(&[("a", 1), ("b", 7), ("d", 2)]));
        assert_eq!(since(&before, now), counts(&[("b", 2), ("d", 2)]));
    }
}
