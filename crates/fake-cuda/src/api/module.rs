//! Modules and kernels.

use std::ffi::{CStr, c_char, c_uint, c_void};

use crate::context::{self, captures, current, forbidden_in_capture};
use crate::fault::export;
use crate::kernel::Kernel;
use crate::state::{INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE, NOT_FOUND, new_handle, state};
use crate::stream::drain_gpu;

const THREADS_MAX: c_uint = 1024;

export! {
    fn cuModuleLoadData(out: *mut u64, image: *const c_void) {
        forbidden_in_capture()?;
        let (context, about) = current()?;
        // As the real one, waits for all that the GPU has to do.
        drain_gpu(about.gpu);
        let text = CStr::from_ptr(image.cast()).to_string_lossy();
        if !text.contains(".version") || !text.contains(".target") {
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
        if !["forebay_scatter", "forebay_fill", "forebay_check", "forebay_gather"].contains(&name.as_str()) {
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
        let kernel = Kernel::read(&name, parameters.cast_const().cast()).ok_or(INVALID_VALUE)?;
        if captures(&stream)? {
            return Ok(());
        }
        let gpu = stream.gpu;
        stream.push("async:kernel", move || kernel.run(gpu));
        Ok(())
    }
}
