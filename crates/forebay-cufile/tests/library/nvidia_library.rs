//! The engine `libcufile` in a process that has this library in front of everything.

use std::ffi::CStr;
use std::path::PathBuf;
use std::process::Command;

use forebay_config::Config;
use forebay_engine::{EngineKind, File, Receipt, Session};
use forebay_error::{ErrorKind, Result};

use crate::common::{clean, library_folder, run, scratch};

const CHILD: &str = "FOREBAY_TEST_CHILD";

/// This test once more, in a process with the library preloaded.
fn preloaded(test: &str) -> Command {
    let mut command = clean(&std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(CHILD, "1");
    command.env("LD_PRELOAD", library_folder().join("libcufile.so.0"));
    command.env("FOREBAY_LIBCUDA", fake_cuda::library_path().unwrap());
    command
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// The object that `cuFileRead` means in this process.
fn in_front() -> Option<PathBuf> {
    // SAFETY: a C string; the address is only looked up, and `info` is writable.
    unsafe {
        let address = libc::dlsym(libc::RTLD_DEFAULT, c"cuFileRead".as_ptr());
        let mut info: libc::Dl_info = std::mem::zeroed();
        let found = !address.is_null() && libc::dladdr(address, &raw mut info) != 0;
        found.then(|| PathBuf::from(CStr::from_ptr(info.dli_fname).to_str().unwrap()))
    }
}

fn read_by_libcufile() -> Result<(Vec<u8>, Receipt)> {
    forebay_libcufile::register();
    let folder = scratch();
    let path = folder.path().join("file");
    std::fs::write(&path, vec![7u8; 200_000]).unwrap();
    let session =
        Session::with_config(Config { engine: Some("libcufile".to_owned()), ..Config::default() }).unwrap();
    let file = File::open(&path)?;
    let mut buffer = session.buffer(0, 200_000)?;
    let receipt = session.read(&file, 0, &mut buffer)?;
    Ok((buffer.to_vec()?, receipt))
}

#[test]
fn the_other_library_is_loaded_behind_this_one() {
    if !is_child() {
        let mut command = preloaded("nvidia_library::the_other_library_is_loaded_behind_this_one");
        run(command.env("FOREBAY_VENDOR_LIBCUFILE", fake_cufile::library_path().unwrap()));
        return;
    }
    assert!(in_front().unwrap().ends_with("libcufile.so.0"), "{:?}", in_front());
    let (bytes, receipt) = read_by_libcufile().unwrap();
    assert!(bytes == vec![7u8; 200_000]);
    assert_eq!(receipt.engine(), EngineKind::Libcufile);
    assert_eq!(receipt.election.title(), "libcufile (compat)");
    assert!(receipt.to_string().contains("libfake_cufile.so"), "{receipt}");
    // This library is still what programs call.
    assert!(in_front().unwrap().ends_with("libcufile.so.0"), "{:?}", in_front());
}

#[test]
fn this_library_is_not_taken_for_the_other() {
    if !is_child() {
        let mut command = preloaded("nvidia_library::this_library_is_not_taken_for_the_other");
        run(command.env("FOREBAY_VENDOR_LIBCUFILE", library_folder().join("libcufile.so.0")));
        return;
    }
    let error = read_by_libcufile().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.message().contains("forebay's own"), "{error}");
    assert!(error.hints().iter().any(|hint| hint.contains("FOREBAY_VENDOR_LIBCUFILE")), "{error:?}");
}

#[test]
fn it_is_not_found_by_a_search_either() {
    if !is_child() {
        run(&mut preloaded("nvidia_library::it_is_not_found_by_a_search_either"));
        return;
    }
    // Where NVIDIA's is installed, that one is found; it cannot work with the software GPU.
    match read_by_libcufile() {
        Ok((_, receipt)) => panic!("what was this? {receipt}"),
        Err(error) => println!("{error}"),
    }
}
