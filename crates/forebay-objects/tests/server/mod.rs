//! A server in the process, by which `s3://` URLs are opened.
#![allow(unreachable_pub, reason = "a module of test binaries, not a crate")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use fake_s3::FakeS3;

/// Tests of a process take turns: the variables are the process's.
static TURN: Mutex<()> = Mutex::new(());

/// A server that the environment names, until it is dropped.
pub struct Named {
    pub server: FakeS3,
    _turn: MutexGuard<'static, ()>,
}

impl std::ops::Deref for Named {
    type Target = FakeS3;
    fn deref(&self) -> &FakeS3 {
        &self.server
    }
}

/// Starts a server, and has the process use it.
pub fn named(server: FakeS3) -> Named {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    forebay_objects::register();
    for (name, value) in server.environment() {
        // SAFETY: other threads of tests wait for their turn; those of the client read variables when an object is opened.
        unsafe { std::env::set_var(name, value) };
    }
    Named { server, _turn: turn }
}
