//! Shared by the command's tests.
#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

pub(crate) mod objects;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Nothing here takes this long: what does hangs.
const LIMIT: Duration = Duration::from_mins(1);

/// What a command came to.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Done {
    /// Insists on success.
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{}{}", self.out, self.err);
        self
    }

    /// Insists on a failure with this exit code that tells why and what to do, without a panic.
    pub(crate) fn fails(self, code: i32, word: &str) -> Self {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.err);
        assert!(self.err.contains("error: ") && self.err.contains(word), "no {word:?} in:\n{}", self.err);
        assert!(self.err.contains("hint: "), "no hint in:\n{}", self.err);
        assert!(!self.err.contains("panicked"), "{}", self.err);
        self
    }
}

/// The binary with a clean environment.
pub(crate) fn forebay() -> Command {
    clean(Command::new(env!("CARGO_BIN_EXE_forebay")))
}

/// Takes forebay's variables away, and the terminal.
pub(crate) fn clean(mut command: Command) -> Command {
    for (name, _) in
        std::env::vars().filter(|(name, _)| name.starts_with("FOREBAY_") || name.starts_with("FAKE_CUDA_"))
    {
        command.env_remove(name);
    }
    // The same on machines with and without GPU; tests that want a GPU name the fake driver.
    command.env("FOREBAY_LIBCUDA", "/no/driver").stdin(Stdio::null());
    command
}

/// SIGINT ends the command, as it does what a terminal's user starts. A shell's job in the background ignores it, and
/// so does all that the job starts.
pub(crate) fn as_in_a_terminal(command: &mut Command) {
    // SAFETY: between fork and exec only these system calls are made.
    unsafe {
        command.pre_exec(|| {
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        });
    }
}

/// The same, in the terminal that its standard input is, whose Ctrl-C reaches it.
pub(crate) fn in_terminal_of_stdin(command: &mut Command) {
    as_in_a_terminal(command);
    // SAFETY: between fork and exec only these system calls are made.
    unsafe {
        command.pre_exec(|| {
            if libc::setsid() < 0 || libc::ioctl(libc::STDIN_FILENO, libc::TIOCSCTTY, 0) < 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
}

/// Runs to the end, or fails after a minute.
pub(crate) fn finish(mut command: Command) -> Done {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = loop {
        match command.spawn() {
            // A copy that was just made: another test forked while it was being written, and has not reached its exec.
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                std::thread::sleep(Duration::from_millis(10));
            }
            spawned => break spawned.unwrap(),
        }
    };
    let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let reader = |mut from: Box<dyn std::io::Read + Send>| {
        std::thread::spawn(move || {
            let mut text = String::new();
            let _ = from.read_to_string(&mut text);
            text
        })
    };
    let (out, err) = (reader(Box::new(out)), reader(Box::new(err)));
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if started.elapsed() > LIMIT {
            child.kill().unwrap();
            panic!("hangs: {command:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    Done { code: status.code(), out: out.join().unwrap(), err: err.join().unwrap() }
}

/// Runs `forebay ARGS` in `directory`.
pub(crate) fn run(directory: &Path, args: &str) -> Done {
    let mut command = forebay();
    command.current_dir(directory).args(args.split_whitespace());
    finish(command)
}

/// Runs `forebay ARGS` in `directory` with the fake driver in the real one's place.
pub(crate) fn run_fake(directory: &Path, args: &str) -> Done {
    let mut command = forebay();
    command.current_dir(directory).args(args.split_whitespace());
    command.env("FOREBAY_LIBCUDA", fake_cuda::library_path().unwrap());
    // How fast the software GPU registers pages tells nothing.
    command.env("FOREBAY_PIN_PACE", "0");
    finish(command)
}

/// Runs a shell script in a user and mount namespace of its own, where `$FOREBAY` is the binary. `None`, with the
/// reason printed, where this machine does not allow it.
pub(crate) fn in_namespace(directory: &Path, script: &str) -> Option<Done> {
    let probe =
        Command::new("unshare").args(["-rm", "sh", "-c", "mount -t tmpfs -o size=1m none /mnt"]).output();
    let why = match probe {
        Ok(Output { status, .. }) if status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => Some(error.to_string()),
    };
    if let Some(why) = why {
        eprintln!("skipped: no user and mount namespaces here: {why}");
        return None;
    }
    let mut command = clean(Command::new("unshare"));
    command
        .args(["-rm", "sh", "-c", script])
        .current_dir(directory)
        .env("FOREBAY", env!("CARGO_BIN_EXE_forebay"));
    Some(finish(command))
}

/// Pseudo-random bytes in a file.
pub(crate) fn sample(directory: &Path, name: &str, len: usize) -> PathBuf {
    let path = directory.join(name);
    let mut bytes = vec![0; len];
    forebay_gpu::fill_pattern(&mut bytes, 42, 0);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// The names in a directory, hidden ones too.
pub(crate) fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
