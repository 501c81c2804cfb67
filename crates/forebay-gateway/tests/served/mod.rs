//! What the tests of the server share: a server in the process, and requests by hand.
#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "helpers of tests; not each test has need of each"
)]

pub mod raw;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_gateway::{AccountEntry, Accounts, Limits, Server, ServerOptions, Stop, in_directory};
use forebay_objects::Bucket;
use raw::Raw;

pub const KEY: &str = "forebay";
pub const SECRET: &str = "of-a-test";

/// A server of a directory of its own.
pub struct Gateway {
    pub address: SocketAddr,
    pub accounts: Arc<Accounts>,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
    directory: Arc<tempfile::TempDir>,
}

impl Gateway {
    pub fn start() -> Self {
        Self::with(vec![AccountEntry::new(KEY, SECRET)], |_| {})
    }

    pub fn with(entries: Vec<AccountEntry>, change: impl FnOnce(&mut ServerOptions)) -> Self {
        Self::over(Arc::new(tempfile::tempdir().unwrap()), entries, change)
    }

    /// One more over the same directory.
    pub fn beside(&self) -> Self {
        Self::over(Arc::clone(&self.directory), vec![AccountEntry::new(KEY, SECRET)], |_| {})
    }

    /// Ends it, and starts one at the same address over the same directory.
    pub fn begin_anew(&mut self, change: impl FnOnce(&mut ServerOptions)) {
        let (address, directory) = (self.address, Arc::clone(&self.directory));
        self.end();
        *self = Self::over(directory, vec![AccountEntry::new(KEY, SECRET)], |options| {
            options.listen = address;
            change(options);
        });
    }

    /// In a directory of its own below this one.
    pub fn below(dir: &Path, entries: Vec<AccountEntry>) -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        let own = tempfile::tempdir_in(dir).unwrap();
        // Accounts with users of their own go through it.
        std::fs::set_permissions(own.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        Self::over(Arc::new(own), entries, |_| {})
    }

    pub fn over(
        directory: Arc<tempfile::TempDir>,
        entries: Vec<AccountEntry>,
        change: impl FnOnce(&mut ServerOptions),
    ) -> Self {
        for entry in &entries {
            std::fs::create_dir_all(directory.path().join(&entry.directory)).unwrap();
        }
        let accounts = Arc::new(Accounts::new(entries, in_directory(directory.path(), false)).unwrap());
        let mut options = ServerOptions::new("127.0.0.1:0".parse().unwrap());
        options.grace_time = Duration::from_secs(5);
        change(&mut options);
        let server = Server::bind(options, &accounts).unwrap();
        let (address, stop) = (server.address(), server.stop());
        let thread = Some(std::thread::spawn(move || server.run(|| {}).unwrap()));
        Self { address, accounts, stop, thread, directory }
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn stop(&self) {
        self.stop.leave();
    }

    /// Requests by hand, by the usual account.
    pub fn raw(&self) -> Raw {
        Raw::new(self.address, KEY, SECRET)
    }

    /// A bucket, as our own client sees it.
    pub fn bucket(&self, name: &str) -> Bucket {
        assert_eq!(self.raw().put(&format!("/{name}"), b"").status, 200);
        self.client(|| Bucket::of(name).unwrap())
    }

    /// Does something while the environment leads here.
    pub fn client<T>(&self, act: impl FnOnce() -> T) -> T {
        static ENVIRONMENT: Mutex<()> = Mutex::new(());
        let _alone = ENVIRONMENT.lock().unwrap_or_else(PoisonError::into_inner);
        let endpoint = format!("http://{}", self.address);
        for (name, value) in [
            ("AWS_ENDPOINT_URL", endpoint.as_str()),
            ("AWS_ACCESS_KEY_ID", KEY),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
            ("AWS_REGION", "us-east-1"),
            ("AWS_CONFIG_FILE", "/dev/null"),
            ("AWS_SHARED_CREDENTIALS_FILE", "/dev/null"),
        ] {
            // SAFETY: all that sets variables in these tests holds the lock, or goes through the standard library.
            unsafe { std::env::set_var(name, value) };
        }
        act()
    }
}

impl Gateway {
    /// Stops it, and waits for its end.
    pub fn end(&mut self) {
        self.stop.leave();
        let ended = self.thread.take().is_none_or(|thread| thread.join().is_ok());
        assert!(ended || std::thread::panicking());
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.end();
    }
}

/// Limits that tests need not wait for.
pub fn short(options: &mut ServerOptions) {
    options.limits = Limits {
        head_time: Duration::from_millis(500),
        idle_time: Duration::from_secs(2),
        stall_time: Duration::from_secs(1),
        ..Limits::default()
    };
}

/// Bytes of which no two ranges are alike.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u8).collect()
}
