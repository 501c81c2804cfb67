//! The functions that are exported, and those by which tests control them.

#![allow(
    unreachable_pub,
    non_snake_case,
    clippy::missing_safety_doc,
    reason = "the names and the promises are those of the interface"
)]

use std::ffi::{CStr, c_char, c_int, c_long, c_uint};

use crate::memory::driver;
use crate::state::{State, hang, release, state};

/// `CUfileError_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Status {
    code: c_int,
    cuda: c_int,
}

const fn answer(code: c_int) -> Status {
    Status { code, cuda: 0 }
}

const OK: Status = answer(0);
const NO_MODULE: c_int = 5001;
const NOT_A_FILE: c_int = 5018;
const OPEN_FLAGS: c_int = 5019;
const BAD_VALUE: c_int = 5022;
const NOT_REGISTERED: c_int = 5027;
const REGISTERED_ALREADY: c_int = 5028;
const CUDA_FAILED: c_int = 5011;
const INTERNAL: c_int = 5030;
const LARGE: usize = 1 << 20;

/// Counts a call and whether it was made as the real library wants it; does what words say of all calls.
fn enter(call: &'static str, hangs: &str) {
    let mut state = state();
    state.count(call);
    if !driver().is_some_and(super::memory::Driver::has_context) {
        state.without_context += 1;
    }
    let is_to_hang = state.has(hangs);
    drop(state);
    if is_to_hang {
        hang();
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFileDriverOpen() -> Status {
    enter("cuFileDriverOpen", "hang-open");
    let mut state = state();
    if state.has("closes-stdin") {
        // SAFETY: no pointers are passed.
        unsafe { libc::close(0) };
    }
    if state.has("no-module") {
        return answer(NO_MODULE);
    }
    if driver().is_none() {
        return Status { code: CUDA_FAILED, cuda: 3 };
    }
    state.users += 1;
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetVersion(version: *mut c_int) -> Status {
    // SAFETY: the caller passes a valid place.
    unsafe { version.write(state().number("version").unwrap_or(1150)) };
    OK
}

/// `CUfileDrvProps_t`: 14 words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileDriverGetProperties(properties: *mut [c_uint; 14]) -> Status {
    let mut words = [0; 14];
    if state().has("nvidia-fs") {
        (words[0], words[1]) = (2, 26);
    }
    // SAFETY: the caller passes a valid place.
    unsafe { properties.write(words) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetParameterBool(parameter: c_int, value: *mut bool) -> Status {
    // SAFETY: the caller passes a valid place.
    unsafe { value.write(parameter == 7 && state().has("p2pdma")) };
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFileSetStatsLevel(level: c_int) -> Status {
    state().statistics = level;
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFileStatsStart() -> Status {
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetStatsL3(statistics: *mut u8) -> Status {
    let state = state();
    if state.statistics < 3 {
        return answer(BAD_VALUE);
    }
    let is_new = state.number("version").is_some_and(|version| version >= 1190);
    let (size, gpus) = if is_new { (5112, 1144) } else { (5000, 1032) };
    let way = match (state.has("p2pdma"), state.has("nvidia-fs")) {
        (true, _) => 56,
        (_, true) => 64,
        _ => 72,
    };
    let mut bytes = vec![0u8; size];
    bytes[gpus + way..gpus + way + 8].copy_from_slice(&state.reads.to_ne_bytes());
    // SAFETY: the caller passes room for the structure of this version.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), statistics, size) };
    OK
}

/// The real library calls its own functions by their names: another library in front of it would get the call.
mod own {
    use std::ffi::c_long;
    unsafe extern "C" {
        pub(super) fn cuFileUseCount() -> c_long;
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFileUseCount() -> c_long {
    state().users as c_long
}

fn register(state: &mut State, kind: c_int, fd: c_int) -> Result<usize, c_int> {
    // SAFETY: no pointers are passed.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: a zeroed stat is a valid value to overwrite.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the place is writable.
    if kind != 1 || flags < 0 || unsafe { libc::fstat(fd, &raw mut stat) } < 0 {
        return Err(BAD_VALUE);
    }
    if state.users == 0 {
        return Err(NO_MODULE);
    }
    if !matches!(stat.st_mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFBLK) {
        return Err(NOT_A_FILE);
    }
    if flags & libc::O_APPEND != 0 {
        return Err(OPEN_FLAGS);
    }
    if state.has("no-udev") {
        return Err(NOT_REGISTERED);
    }
    if !state.descriptors.insert(fd) {
        return Err(REGISTERED_ALREADY);
    }
    state.next += 1;
    // As pointers are: no small numbers.
    let handle = 0x5000_0000 + state.next * 64;
    state.files.insert(handle, fd);
    Ok(handle)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileHandleRegister(handle: *mut usize, description: *const [u64; 3]) -> Status {
    enter("cuFileHandleRegister", "hang-register");
    // SAFETY: takes nothing.
    if unsafe { own::cuFileUseCount() } == 0 {
        return answer(INTERNAL);
    }
    // SAFETY: the caller passes a description.
    let [kind, fd, _] = unsafe { description.read() };
    match register(&mut state(), kind as c_int, fd as c_int) {
        Ok(made) => {
            // SAFETY: the caller passes a valid place.
            unsafe { handle.write(made) };
            OK
        }
        Err(code) => answer(code),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFileHandleDeregister(handle: usize) {
    enter("cuFileHandleDeregister", "hang-deregister");
    let mut state = state();
    if let Some(fd) = state.files.remove(&handle) {
        state.descriptors.remove(&fd);
    }
}

fn fail(state: &State, errno: c_int) -> isize {
    if state.has("negative") {
        return -(errno as isize);
    }
    // SAFETY: errno is this thread's.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// What both directions check first: the descriptor, and how many bytes to move.
fn begin(handle: usize, len: usize, word: &str) -> Result<(c_int, usize), isize> {
    if len >= LARGE && state().has("hang-large") {
        hang();
    }
    let state = state();
    if let Some(errno) = state.number(word) {
        return Err(fail(&state, errno));
    }
    let Some(fd) = state.files.get(&handle) else { return Err(fail(&state, NOT_REGISTERED)) };
    Ok((*fd, if state.has("short") { len.min(1000) } else { len }))
}

/// Ordinary reads want aligned memory where the descriptor has O_DIRECT: the file is opened a second time without.
fn buffered(fd: c_int, flags: c_int) -> Result<std::fs::File, c_int> {
    use std::os::fd::FromRawFd;
    let path = format!("/proc/self/fd/{fd}\0");
    // SAFETY: a path that ends with a zero.
    let again = unsafe { libc::open(path.as_ptr().cast(), flags | libc::O_CLOEXEC) };
    if again < 0 {
        return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
    }
    // SAFETY: the descriptor is new.
    Ok(unsafe { std::fs::File::from_raw_fd(again) })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFileRead(handle: usize, base: u64, len: usize, offset: i64, at: i64) -> isize {
    use std::os::unix::fs::FileExt;
    enter("cuFileRead", "hang-read");
    let (fd, len) = match begin(handle, len, "fail-read") {
        Ok(begun) => begun,
        Err(answer) => return answer,
    };
    let mut bytes = vec![0; len];
    let mut good = 0;
    let got = buffered(fd, libc::O_RDONLY).and_then(|file| {
        while good < len {
            match file.read_at(&mut bytes[good..], offset as u64 + good as u64) {
                Ok(0) => break,
                Ok(got) => good += got,
                Err(error) => return Err(error.raw_os_error().unwrap_or(libc::EIO)),
            }
        }
        Ok(())
    });
    let mut state = state();
    if let Err(errno) = got {
        return fail(&state, errno);
    }
    if state.has("wrong") && good > 0 {
        bytes[0] ^= 0x80;
    }
    let is_put = || driver().is_some_and(|driver| driver.put((base as i64 + at) as u64, &bytes[..good]));
    if !state.has("nothing") && !is_put() {
        return fail(&state, libc::EIO);
    }
    state.reads += 1;
    if state.has("too-much") { good as isize + len as isize + 1 } else { good as isize }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFileWrite(handle: usize, base: u64, len: usize, offset: i64, at: i64) -> isize {
    use std::os::unix::fs::FileExt;
    enter("cuFileWrite", "hang-write");
    let (fd, len) = match begin(handle, len, "fail-write") {
        Ok(begun) => begun,
        Err(answer) => return answer,
    };
    let mut bytes = vec![0; len];
    if !driver().is_some_and(|driver| driver.get((base as i64 + at) as u64, &mut bytes)) {
        return fail(&state(), libc::EIO);
    }
    let put = buffered(fd, libc::O_WRONLY).and_then(|file| {
        file.write_all_at(&bytes, offset as u64).map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
    });
    match put {
        Ok(()) => len as isize,
        Err(errno) => fail(&state(), errno),
    }
}

// ---- for tests ----------------------------------------------------------------------------------------------------

/// Sets the words, and forgets counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_cufile_set(words: *const c_char) {
    // SAFETY: the caller passes a C string.
    let words = unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned();
    let mut state = state();
    state.words = words;
    state.calls.clear();
    state.without_context = 0;
}

/// Lets all calls that hang go on.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cufile_release() {
    release();
}

/// A count: of calls by their name; `hanging`, `without-context`, `files`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_cufile_count(what: *const c_char) -> u64 {
    // SAFETY: the caller passes a C string.
    let what = unsafe { CStr::from_ptr(what) }.to_string_lossy();
    let state = state();
    match &*what {
        "hanging" => state.hanging,
        "without-context" => state.without_context,
        "files" => state.files.len() as u64,
        call => state.calls.get(call).copied().unwrap_or(0),
    }
}
