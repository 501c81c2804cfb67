//! The engines. Each moves bytes between one kind of source and one kind of memory.
//!
//! A device has an ordered list of engines ([`elect`]). A request goes down the list once. A synchronous transfer is
//! offered to [`Engine::run`] of each; what no engine runs there, and everything asynchronous, goes to
//! [`Engine::claim`], batch by batch. An engine takes all of a batch, takes parts, or passes with a reason. The next
//! engine gets the rest. The works of all engines end in one completion. A [`Walk`](explain::Walk) records what each
//! engine did; [`explain`] makes the receipt of it.
//!
//! A program adds its own engine by [`registry::register`]: see `examples/toy_engine.rs`.

pub(crate) mod candidate;
pub(crate) mod elect;
pub(crate) mod engine;
pub(crate) mod explain;
pub(crate) mod mapped;
pub(crate) mod mount_read;
pub(crate) mod noop;
pub(crate) mod p2p;
pub(crate) mod permission;
pub(crate) mod placed;
pub(crate) mod registry;
pub(crate) mod resident;
pub(crate) mod staged;
pub(crate) mod task_thread;
pub(crate) mod trial_memory;

pub use self::candidate::{EngineCandidate, EngineParts};
pub use self::engine::{AskedBatch, Claim, Done, Engine, EngineFacts, Known, Onward, Ran, Taken, Work};
pub(crate) use self::engine::{Claimed, claim_along, warmth_of};
pub use self::permission::{DeviceOptions, Permission};
pub use self::registry::{register, register_candidate};

/// Engines that election tries, best first: add a new one here.
pub(crate) const ELECTED: [&dyn EngineCandidate; 3] =
    [&p2p::P2pCandidate, &placed::PlacedCandidate, &mapped::MappedCandidate];

// A receipt names each of them, the lanes, and one that a program registered.
const _: () = assert!(ELECTED.len() + 2 <= explain::MAX_STEPS);
