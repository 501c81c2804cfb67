//! Attacks that each go wrong in one way, for the tests of the program itself.

use std::time::Duration;

use crate::trial::{Attack, Outcome, Skip, Trial};

/// They are not in the list, and run only by their names.
pub const ALL: &[Attack] = &[
    attack("test-fails", fails),
    attack("test-panics", |_| panic!("as it should")),
    attack("test-crashes", |_| std::process::abort()),
    attack("test-hangs", hangs),
    attack("test-skips", |_| Err(Skip("there is no reason".to_owned()))),
];

const fn attack(name: &'static str, run: fn(&'static Trial) -> Outcome) -> Attack {
    Attack { name, what: "goes wrong", run, goes_on: true }
}

fn fails(trial: &'static Trial) -> Outcome {
    trial.fail("as it should");
    Ok(())
}

fn hangs(trial: &'static Trial) -> Outcome {
    trial
        .call(|| "a call that does not come back".to_owned(), || std::thread::sleep(Duration::from_hours(1)));
    Ok(())
}
