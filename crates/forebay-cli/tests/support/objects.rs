//! A server of objects in the process, and a folder, for tests of `forebay s3`.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use fake_s3::{Asked, FakeS3};

use super::{Done, as_in_a_terminal, finish, forebay};

/// A server with a bucket, and a folder.
pub(crate) struct Here {
    pub(crate) server: FakeS3,
    pub(crate) folder: tempfile::TempDir,
}

impl Here {
    pub(crate) fn new() -> Self {
        let server = FakeS3::start();
        server.make_bucket("bkt");
        Self { server, folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = forebay();
        command.current_dir(self.path()).args(args).env_remove("AWS_PROFILE").envs(self.server.environment());
        command
    }

    pub(crate) fn run(&self, args: &str) -> Done {
        finish(self.command(&args.split_whitespace().collect::<Vec<_>>()))
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path().join(name)).unwrap()
    }

    /// Interrupts a command when the server got `many` requests of a kind.
    pub(crate) fn interrupt(&self, args: &str, asked: Asked, many: u64) {
        let before = self.server.requests(asked);
        let mut command = self.command(&args.split_whitespace().collect::<Vec<_>>());
        as_in_a_terminal(&mut command);
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let mut child = command.spawn().unwrap();
        let began = Instant::now();
        while self.server.requests(asked) < before + many {
            assert!(began.elapsed() < Duration::from_secs(20), "{args}: no request came");
            std::thread::sleep(Duration::from_millis(5));
        }
        // SAFETY: the child is not waited for yet.
        unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
        assert_eq!(child.wait().unwrap().code(), Some(130), "{args}");
    }

    /// Requests that moved or removed something.
    pub(crate) fn moves(&self) -> u64 {
        let kinds = [Asked::Get, Asked::Put, Asked::Part, Asked::Copy, Asked::Delete, Asked::DeleteMany];
        kinds.iter().map(|asked| self.server.requests(*asked)).sum()
    }
}

/// Lines in order: threads are done in any.
pub(crate) fn lines(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}
