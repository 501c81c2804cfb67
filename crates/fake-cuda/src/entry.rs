//! The frame around every exported function.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::fault;
use crate::result::{Answer, NOT_INITIALIZED, UNKNOWN};
use crate::state::state;

/// Counts one use of `name`, sleeps if that is set for it, and answers the fault that is set for it, if any.
pub(crate) fn strike(name: &str) -> Answer {
    let hang = state().hangs.remove(name);
    if let Some(time) = hang {
        fault::hang(time);
    }
    let mut state = state();
    match state.calls.get_mut(name) {
        Some(count) => *count += 1,
        None => {
            state.calls.insert(name.to_owned(), 1);
        }
    }
    let Some(index) = state.faults.iter().position(|fault| fault.name == name) else { return Ok(()) };
    let fault = &mut state.faults[index];
    if fault.after > 0 {
        fault.after -= 1;
        return Ok(());
    }
    let code = fault.code;
    match fault.times {
        0 => {}
        1 => {
            state.faults.remove(index);
        }
        _ => fault.times -= 1,
    }
    Err(code)
}

/// The process that initialised the driver, by its number.
static INITIALISED_IN: AtomicU32 = AtomicU32::new(0);

/// This process may use the driver from now on; its forked children may not.
pub(crate) fn initialised() {
    let _ = INITIALISED_IN.compare_exchange(0, std::process::id(), Ordering::SeqCst, Ordering::SeqCst);
}

/// Asked before any lock: another thread of the parent's may have it.
fn is_forked() -> bool {
    ![0, std::process::id()].contains(&INITIALISED_IN.load(Ordering::SeqCst))
}

/// Runs an exported function: its fault first, then its body. A panic must not reach C.
pub(crate) fn enter(name: &str, body: impl FnOnce() -> Answer) -> c_int {
    if is_forked() {
        return NOT_INITIALIZED;
    }
    crate::driver_lock::pass();
    let answer = strike(name).and_then(|()| catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(UNKNOWN)));
    answer.err().unwrap_or(0)
}

/// Exports driver functions. A body is written as if in an `unsafe` function and answers `Ok` or a result code.
macro_rules! export {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            #[allow(unused_unsafe)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> std::ffi::c_int {
                // SAFETY: callers of the driver API pass valid pointers, as its documentation demands.
                $crate::entry::enter(stringify!($name), || unsafe { $body })
            }
        )*
    };
}
pub(crate) use export;
