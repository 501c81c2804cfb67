//! The attacks, one file each.

mod batches;
mod cancel;
mod close_all;
mod descriptors;
mod forks;
mod itself;
mod mixed;
mod mixes;
mod order;
mod regrowth;
mod savers;
mod signals;
mod sizes;
mod throttle;
mod worker;
mod writers;

use std::process::ExitCode;

use crate::trial::{Attack, Outcome, Trial};

const fn attack(name: &'static str, what: &'static str, run: fn(&'static Trial) -> Outcome) -> Attack {
    Attack { name, what, run, goes_on: true }
}

const fn scene(name: &'static str, what: &'static str, run: fn(&'static Trial) -> Outcome) -> Attack {
    Attack { name, what, run, goes_on: false }
}

pub const ALL: &[Attack] = &[
    attack("writers", "nine kinds of writers beside readers of versioned blocks", writers::run),
    attack("mixes", "large writes by one call beside readers in place: old or new, never both", mixes::run),
    scene("throttle", "readers beside a slow O_DIRECT writer in a throttled cgroup", throttle::run),
    attack("descriptors", "descriptors closed and replaced under registered handles", descriptors::run),
    scene(
        "close-all",
        "everything above 2 is closed in the middle of work, and the numbers are used again",
        close_all::run,
    ),
    attack("signals", "timers every 20 to 50 us with handlers without SA_RESTART", signals::run),
    attack("forks", "forks in the middle of work; children use forebay, exec or exit", forks::run),
    attack("cancel", "pthread_cancel in the middle of calls", cancel::run),
    attack("sizes", "sizes and offsets at every limit, files that shrink", sizes::run),
    attack("regrowth", "a file that is cut and grows beside reads longer than a slot", regrowth::run),
    attack("order", "calls behind work on the default stream that runs late", order::run),
    attack("batches", "batches cancelled and destroyed in flight", batches::run),
    attack("mixed", "many threads: calls, batches and operations of streams", mixed::run),
    attack("savers", "savers and `forebay cp` killed in the middle", savers::run),
];

/// The attack of this name.
pub fn named(name: &str) -> Option<&'static Attack> {
    ALL.iter().chain(itself::ALL).find(|attack| attack.name == name)
}

/// A part of an attack that is a process of its own.
pub fn step(words: &[String]) -> ExitCode {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["save", source, target] => savers::save(source, target),
        ["slow-write", path, state] => throttle::slow_write(path, state),
        _ => ExitCode::from(2),
    }
}
