//! Modules and kernels.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::device::attribute;
use crate::context::{self, captures, current, forbidden_in_capture};
use crate::entry::{export, strike};
use crate::kernel::{FakeKernel, NAMES};
use crate::result::{INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE, NOT_FOUND, new_handle};
use crate::state::state;
use crate::work::drain_gpu;

const THREADS_MAX: c_uint = 1024;
/// An ELF file's machine: a GPU of NVIDIA's.
const CUDA_MACHINE: u16 = 190;
const CAPABILITY_MAJOR: c_int = 75;
const CAPABILITY_MINOR: c_int = 76;

/// Whether a text is PTX.
///
/// # Safety
/// It ends with a zero.
unsafe fn takes_text(image: *const c_char) -> bool {
    // SAFETY: the caller promises it.
    let text = unsafe { CStr::from_ptr(image) }.to_string_lossy();
    text.contains(".version") && text.contains(".target")
}

/// Whether an ELF file is machine code for this GPU: of a capability with the same first number, and no later one.
///
/// # Safety
/// Its header can be read.
unsafe fn takes_code(image: *const u8) -> bool {
    // SAFETY: the caller promises it.
    let header = unsafe { image.cast::<[u8; 64]>().read() };
    let flags = u32::from_le_bytes([header[48], header[49], header[50], header[51]]);
    // Newer files have it one byte further, and a small number before it.
    let number = if flags & 0xFF >= 50 { flags & 0xFF } else { flags >> 8 & 0xFF } as c_int;
    let other = |name: c_int| state().attributes.get(&name).copied();
    let value = |name: c_int| other(name).unwrap_or_else(|| attribute(name));
    u16::from_le_bytes([header[18], header[19]]) == CUDA_MACHINE
        && number / 10 == value(CAPABILITY_MAJOR)
        && number % 10 <= value(CAPABILITY_MINOR)
}

export! {
    fn cuModuleLoadData(out: *mut u64, image: *const c_void) {
        forbidden_in_capture()?;
        let (context, about) = current()?;
        // As the real one, waits for all that the GPU has to do.
        drain_gpu(about.gpu);
        // As if one more function was called: what fails by the name of the image's kind.
        let is_code = image.cast::<[u8; 4]>().read() == *b"\x7fELF";
        strike(if is_code { "cuModuleLoadData:cubin" } else { "cuModuleLoadData:ptx" })?;
        let takes = if is_code { takes_code(image.cast()) } else { takes_text(image.cast()) };
        if !takes {
            return Err(INVALID_IMAGE);
        }
        let module = new_handle();
        state().modules.insert(module, context);
        out.write(module);
        Ok(())
    }

    fn cuModuleUnload(module: u64) {
        current()?;
        state().modules.remove(&module).map(drop).ok_or(INVALID_HANDLE)
    }

    fn cuModuleGetFunction(out: *mut u64, module: u64, name: *const c_char) {
        let mut state = state();
        let context = *state.modules.get(&module).ok_or(INVALID_HANDLE)?;
        let name = CStr::from_ptr(name).to_string_lossy().into_owned();
        if !NAMES.contains(&name.as_str()) {
            return Err(NOT_FOUND);
        }
        let function = new_handle();
        state.functions.insert(function, (context, name));
        out.write(function);
        Ok(())
    }

    fn cuLaunchKernel(function: u64, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, _shared: c_uint, handle: u64, parameters: *mut *mut c_void, _extra: *mut *mut c_void) {
        let stream = context::stream(handle)?;
        let (context, name) = state().functions.get(&function).cloned().ok_or(INVALID_HANDLE)?;
        if context != stream.context {
            return Err(INVALID_HANDLE);
        }
        let threads = u64::from(block_x) * u64::from(block_y) * u64::from(block_z);
        let grid = [grid_x, grid_y, grid_z];
        let shape = (1..=u64::from(THREADS_MAX)).contains(&threads)
            && grid[0] <= i32::MAX as c_uint
            && grid.iter().all(|size| *size > 0)
            && grid[1..].iter().all(|size| *size <= 65_535);
        if !shape {
            return Err(INVALID_VALUE);
        }
        let kernel = FakeKernel::read(&name, parameters.cast_const().cast()).ok_or(INVALID_VALUE)?;
        if captures(&stream)? {
            return Ok(());
        }
        let gpu = stream.gpu;
        stream.push(kernel.fault(), move || kernel.run(gpu, context));
        Ok(())
    }
}
