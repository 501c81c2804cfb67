//! A server that the environment names.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fake_verbs::Fake;

use super::RdmaServer;

/// The environment is the process's.
static TURN: Mutex<()> = Mutex::new(());

/// A server over a fabric that the environment names, until it is dropped.
pub struct Named {
    server: RdmaServer,
    _turn: MutexGuard<'static, ()>,
}

impl std::ops::Deref for Named {
    type Target = RdmaServer;
    fn deref(&self) -> &RdmaServer {
        &self.server
    }
}

fn set(name: &str, value: &str) {
    // SAFETY: other threads of tests wait for their turn; those of the client read variables when an object is opened.
    unsafe { std::env::set_var(name, value) };
}

impl Named {
    /// With this `FOREBAY_S3_RDMA`.
    pub fn start(fabric: Fake, wish: &str) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        forebay_objects::register();
        let server = RdmaServer::start(fabric);
        server.s3().make_bucket("bucket");
        for (name, value) in server.environment() {
            set(name, &value);
        }
        set("FOREBAY_S3_RDMA", wish);
        forebay_objects::use_fabric(Arc::new(server.fabric.clone()));
        Self { server, _turn: turn }
    }

    /// Has the environment name the server of S3 behind this one.
    pub fn name_s3(&self) {
        for (name, value) in self.s3().environment() {
            set(name, &value);
        }
    }
}
