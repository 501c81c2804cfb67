//! `make install` and `make uninstall`, below a folder of the test's own.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{MANIFEST, clean, library, run, scratch};

fn make(target: &str, arguments: &[String]) {
    let mut command = Command::new("make");
    command.args(["-s", "-C"]).arg(Path::new(MANIFEST).join("../..")).arg(target).args(arguments);
    run(command.env_remove("MAKEFLAGS").env_remove("MAKELEVEL").env_remove("DESTDIR"));
}

/// All files and links below a folder, as paths from there.
fn files(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else {
                found.insert(entry.path().strip_prefix(folder).unwrap().to_owned());
            }
        }
    }
    found
}

const INSTALLED: [&str; 16] = [
    "bin/forebay",
    "bin/gds_stats",
    "bin/gdscheck",
    "bin/gdscheck.py",
    "bin/gdsio",
    "bin/gdsio_verify",
    "include/cufile.h",
    "lib/libcufile.so",
    "lib/libcufile.so.0",
    "lib/libcufile_rdma.so.1",
    "lib/pkgconfig/cufile.pc",
    "lib/systemd/system/forebay-s3.service",
    "lib/systemd/system/forebay-stats.service",
    "share/forebay/haproxy-s3.cfg",
    "share/man/man1/forebay-bench.1",
    "share/man/man1/gdsio.1",
];

#[test]
fn everything_is_put_in_place_used_and_removed() {
    if Command::new("make").arg("--version").output().is_err() {
        eprintln!("skipped: no make");
        return;
    }
    let (built, root) = (scratch(), scratch());
    build(built.path());
    let arguments = [
        format!("BUILT={}", built.path().display()),
        format!("DESTDIR={}", root.path().display()),
        "PREFIX=/opt/forebay".to_owned(),
    ];
    let prefix = root.path().join("opt/forebay");
    for _ in 0..2 {
        make("install", &arguments);
        assert_eq!(files(&prefix), INSTALLED.map(PathBuf::from).into_iter().collect());
    }
    assert_eq!(run(&mut Command::new(prefix.join("bin/gdsio"))), "gdsio\n");
    compile_and_run(&prefix, root.path());
    let unit = fs::read_to_string(prefix.join("lib/systemd/system/forebay-stats.service")).unwrap();
    assert!(unit.contains("ExecStart=\"/opt/forebay/bin/forebay\" stats --listen ${ADDRESS}\n"), "{unit}");
    make("uninstall", &arguments);
    assert_eq!(files(root.path()), BTreeSet::new());
    make("uninstall", &arguments);
}

#[test]
fn blanks_in_paths_are_kept() {
    if Command::new("make").arg("--version").output().is_err() {
        eprintln!("skipped: no make");
        return;
    }
    let (folder, built) = (scratch(), "what was built");
    fs::create_dir(folder.path().join(built)).unwrap();
    build(&folder.path().join(built));
    let at = |name: &str| folder.path().join(name).display().to_string();
    let arguments = [
        format!("BUILT={}", at(built)),
        format!("DESTDIR={}", at("a root")),
        "PREFIX=/opt/its own folder".to_owned(),
    ];
    make("install", &arguments);
    let prefix = folder.path().join("a root/opt/its own folder");
    assert_eq!(files(&prefix), INSTALLED.map(PathBuf::from).into_iter().collect());
    make("uninstall", &arguments);
    assert_eq!(files(&folder.path().join("a root")), BTreeSet::new());
}

/// What `make install` takes, in a folder.
fn build(folder: &Path) {
    fs::copy(library(), folder.join("libcufile.so")).unwrap();
    // The command has tests of its own; what stands in for it here writes two pages, or prints the name that it was called by.
    let command = "#!/bin/sh\nman=$2/man/man1\nif [ \"$1\" = pages ]; then mkdir -p \"$man\" && \
                   touch \"$man/forebay-bench.1\" \"$man/gdsio.1\"; else basename \"$0\"; fi\n";
    fs::write(folder.join("forebay"), command).unwrap();
}

/// A program that knows only what pkg-config says, linked with the companion library as well.
fn compile_and_run(prefix: &Path, folder: &Path) {
    let pc = fs::read_to_string(prefix.join("lib/pkgconfig/cufile.pc")).unwrap();
    assert!(pc.contains("libdir=/opt/forebay/lib\n") && !pc.contains('@'), "{pc}");
    let (source, program) = (folder.join("program.c"), folder.join("program"));
    let text = "#include <cufile.h>\nint main(void) {\n    int version = 0;\n    \
                return cuFileGetVersion(&version).err != CU_FILE_SUCCESS || version != 1150;\n}\n";
    fs::write(&source, text).unwrap();
    let mut command = Command::new("cc");
    command.arg(&source).arg("-o").arg(&program).arg("-Wl,--no-as-needed");
    let include = format!("-I{}", prefix.join("include").display());
    let libraries = format!("-L{}", prefix.join("lib").display());
    run(command.args([include, libraries]).args(["-lcufile", "-l:libcufile_rdma.so.1"]));
    run(clean(&program).env("LD_LIBRARY_PATH", prefix.join("lib")));
    fs::remove_file(source).unwrap();
    fs::remove_file(program).unwrap();
}
