//! An engine of a program's own that stands for election: `examples/toy_engine.rs`, and a better one that leaves parts to it.

#[allow(dead_code, reason = "the example's main")]
#[path = "../../examples/toy_engine.rs"]
mod toy_engine;

use std::sync::Arc;

use crate::common::{self, Scratch, disk, in_process, pattern};
use forebay_config::{CachePolicy, Config, IoBackend};
use forebay_engine::{
    AskedBatch, Claim, DeviceOptions, Engine, EngineCandidate, EngineKind, EngineParts, File, Permission,
    Receipt, Refusal, Session,
};
use forebay_error::{ErrorKind, Result};

const KEY: u64 = 5;
const LEN: usize = 3 << 20;
const TOY: EngineKind = EngineKind::Registered("toy");
const PICKY: EngineKind = EngineKind::Registered("picky");

/// Stands before `mapped`, for memory of GPUs alone, and takes nothing.
struct Picky;

impl EngineCandidate for Picky {
    fn kind(&self) -> EngineKind {
        PICKY
    }

    fn permission(&self, options: &DeviceOptions<'_>) -> Permission {
        if options.device.info().is_host {
            return Permission::never(PICKY, "it does not like host memory", None);
        }
        options.permit(PICKY)
    }

    fn make(&self, parts: &EngineParts<'_>, permission: Permission) -> Result<Arc<dyn Engine>> {
        assert!(!parts.device.info().is_host && permission == Permission::Auto);
        Ok(Arc::new(Self))
    }
}

impl Engine for Picky {
    fn kind(&self) -> EngineKind {
        PICKY
    }

    fn claim(&self, _: &AskedBatch<'_>) -> Result<Claim> {
        let refusal = Refusal { engine: PICKY, reason: "it is not in the mood".to_owned(), hint: None };
        Ok(Claim::Passed(Some(forebay_engine::ReceiptPart::Now(Arc::new(refusal)))))
    }
}

fn config(strict: &[&str], engine: Option<&str>) -> Config {
    Config {
        strict: strict.iter().map(|name| (*name).to_owned()).collect(),
        engine: engine.map(str::to_owned),
        ..common::config(IoBackend::Auto, CachePolicy::Auto)
    }
}

fn reason(receipt: &Receipt, engine: EngineKind) -> Option<&str> {
    let refusal = receipt.election.refused.iter().find(|refusal| refusal.engine == engine);
    refusal.map(|refusal| refusal.reason.as_str())
}

#[test]
fn a_program_s_engine_is_elected_without_being_asked_for() {
    in_process(&[], &[], || {
        common::install_gpu();
        forebay_engine::register_candidate(EngineKind::Staged, toy_engine::ToyCandidate).unwrap();
        forebay_engine::register_candidate(EngineKind::Mapped, Picky).unwrap();
        let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
        let file = File::open(scratch.path()).unwrap();
        let read = |config: Config, host: bool| {
            let session = Session::with_config(config)?;
            let mut buffer = if host { session.host_buffer(LEN) } else { session.buffer(0, LEN) }?;
            let receipt = session.read(&file, 0, &mut buffer)?;
            assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN), "wrong bytes");
            assert_eq!(receipt.bytes(), LEN as u64);
            Ok::<Receipt, forebay_error::Error>(receipt)
        };
        for host in [true, false] {
            let receipt = read(config(&[], None), host).unwrap();
            assert_eq!(receipt.engine(), TOY, "{receipt}");
            assert_eq!(reason(&receipt, PICKY), (!host).then_some("it is not in the mood"), "{receipt}");
            let lanes = if host { EngineKind::Host } else { EngineKind::Staged };
            let receipt = read(config(&[lanes.name()], None), host).unwrap();
            assert_eq!(receipt.engine(), lanes, "{receipt}");
            assert_eq!(read(config(&["toy"], None), host).unwrap().engine(), TOY, "strict");
            assert_eq!(read(config(&[], Some("toy")), host).unwrap().engine(), TOY, "asked for");
            // Another one was asked for: the toy says so.
            let receipt = read(config(&[], Some(lanes.name())), host).unwrap();
            assert_eq!(receipt.engine(), lanes, "{receipt}");
            assert_eq!(reason(&receipt, TOY).is_some(), !host, "{receipt}");
        }
        let error = read(config(&[], Some("picky")), true).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().contains("does not like")),
            (ErrorKind::Unsupported, true)
        );
        assert!(forebay_engine::register("mapped", |_, _| Ok(Arc::new(Picky))).is_err(), "a built-in name");
    });
}
