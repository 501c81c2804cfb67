//! A program with rights that its caller lacks does nothing that the caller's environment says.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::common::{MANIFEST, cc, clean, library, run};

const NOBODY: u32 = 65534;

/// A library that leaves a file as soon as it is loaded.
const MARKING: &str = r"
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void mark(void) { close(open(MARK, O_WRONLY | O_CREAT, 0600)); }
";

/// A folder for such a program: its file system must honour the bit.
fn place() -> Option<tempfile::TempDir> {
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: only root can make a program that gives others its rights");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    Some(folder)
}

/// Copies the program, with or without the bit.
fn copy(program: &Path, to: &Path, mode: u32) {
    fs::copy(program, to).unwrap();
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).unwrap();
}

/// What a user can make such a program do: a folder in which all that the environment names would leave something.
struct Wishes<'a>(&'a Path);

impl Wishes<'_> {
    fn new(folder: &Path) -> Wishes<'_> {
        let wishes = Wishes(folder);
        fs::create_dir(wishes.marks()).unwrap();
        chown(wishes.marks(), Some(NOBODY), Some(NOBODY)).unwrap();
        let source = folder.join("libcuda.c");
        fs::write(&source, MARKING).unwrap();
        let mark = format!("-DMARK=\"{}\"", wishes.marks().join("loaded").display());
        run(cc().args(["-shared", "-fPIC"]).arg(mark).arg(&source).arg("-o").arg(folder.join("libcuda")));
        let json = format!(r#"{{"logging": {{"dir": "{}", "level": "TRACE"}}}}"#, wishes.marks().display());
        fs::write(folder.join("cufile.json"), json).unwrap();
        wishes
    }

    fn marks(&self) -> std::path::PathBuf {
        self.0.join("marks")
    }

    /// Runs it as nobody; returns its output, and the names of leftover files.
    fn run(&self, program: &Path, (name, value): (&str, &str)) -> (String, Vec<String>) {
        let mut command: Command = clean(program);
        command.env_remove("LD_LIBRARY_PATH").arg(self.0.join("data")).uid(NOBODY).gid(NOBODY);
        command.env(name, value.replace("HERE", self.0.to_str().unwrap()));
        let text = run(&mut command);
        let mut left = Vec::new();
        for entry in fs::read_dir(self.marks()).unwrap() {
            let path = entry.unwrap().path();
            left.push(path.file_name().unwrap().to_string_lossy().into_owned());
            fs::remove_file(path).unwrap();
        }
        (text, left)
    }
}

#[test]
fn a_program_with_other_rights_believes_no_variable() {
    let Some(folder) = place() else { return };
    let folder = folder.path();
    let wishes = Wishes::new(folder);
    fs::copy(library(), folder.join("libcufile.so.0")).unwrap();
    fs::write(folder.join("data"), "hello\n").unwrap();
    let (plain, elevated) = (folder.join("plain"), folder.join("elevated"));
    let built = folder.join("built");
    let rpath = format!("-Wl,-rpath,{}", folder.display());
    run(cc()
        .arg("-std=gnu11")
        .arg(format!("{MANIFEST}/tests/c/elevated.c"))
        .arg("-o")
        .arg(&built)
        .arg(folder.join("libcufile.so.0"))
        .args([&rpath, "-lpthread", "-ldl"]));
    copy(&built, &plain, 0o755);
    copy(&built, &elevated, 0o4755);

    let cases = [
        ("FOREBAY_LIBCUDA", "HERE/libcuda"),
        ("FOREBAY_TRACE", "HERE/marks/trace"),
        ("FOREBAY_COUNTERS_DIR", "HERE/marks"),
        ("FOREBAY_CUFILE_LOG", "HERE/marks/log"),
        ("CUFILE_LOGFILE_PATH", "HERE/marks/log"),
        ("CUFILE_ENV_PATH_JSON", "HERE/cufile.json"),
    ];
    for variable in cases {
        // Without the bit each of them does something, or this test shows nothing.
        let (text, left) = wishes.run(&plain, variable);
        assert!(text.starts_with("AT_SECURE=0\n"), "{text}");
        assert!(!left.is_empty(), "{variable:?} does nothing at all");
        let (text, left) = wishes.run(&elevated, variable);
        if text.starts_with("AT_SECURE=0\n") {
            eprintln!(
                "skipped: a program in {} gets no other rights (nosuid, no_new_privs)",
                folder.display()
            );
            return;
        }
        assert!(left.is_empty(), "{variable:?} is honoured: {left:?}");
        assert!(text.contains("read=6\n"), "{variable:?}: {text}");
    }
    let forced = ("CUFILE_FORCE_COMPAT_MODE", "true");
    assert!(wishes.run(&plain, forced).0.contains("forced=1"));
    assert!(wishes.run(&elevated, forced).0.contains("forced=0"));
}
