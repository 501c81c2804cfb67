//! forebay's own kernels: what they are called, what they take, and how they are launched.

use std::ffi::{CStr, c_uint, c_void};

use forebay_error::{Error, Result};

use super::driver::CudaDriver;
use super::error::CudaFailure;
use super::images;
use super::sys::Handle;
use crate::{Gather, PatternCheck, Resident};

const SCATTER: &CStr = c"forebay_scatter";
const FILL: &CStr = c"forebay_fill";
const CHECK: &CStr = c"forebay_check";
const GATHER: &CStr = c"forebay_gather";
const CHECKSUMS: &CStr = c"forebay_checksums";
const RESIDENT: &CStr = c"forebay_resident";

/// Bytes that one thread of the scatter kernel has in flight: four loads of 16.
const THREAD_BYTES: usize = 64;
/// The greatest number of threads in a block. The kernels are compiled for no more.
const BLOCK_THREADS: usize = 256;
/// One warp.
const WARP: usize = 32;
/// A piece is cut into parts of no less than this for several blocks.
const PART_BYTES: usize = 64 << 10;
/// Beyond this many blocks a finer cut brings no more parallelism.
const ENOUGH_BLOCKS: usize = 4096;
/// The greatest second dimension of a grid.
const GRID_Y_MAX: usize = 65_535;
/// From this size on a whole block of the gather kernel copies a piece, below it a warp or less. As in `gather.cuh`.
const GATHER_BLOCK_BYTES: u64 = 32 << 10;
/// Blocks of the gather kernel: 2048 threads for each of 132 multiprocessors.
const GATHER_BLOCKS: u64 = 132 * 2048 / BLOCK_THREADS as u64;
/// Mailboxes of one block at most. As in `resident.cuh`.
const MAILBOXES_OF_BLOCK: u32 = 4;
const _: () = assert!(Resident::MAILBOXES as u32 <= Resident::BLOCKS * MAILBOXES_OF_BLOCK);
/// Blocks of the pattern kernels; each walks over the memory in strides of the whole grid.
const PATTERN_BLOCKS: usize = 2048;

/// The kernels of one context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernels {
    scatter: Handle,
    fill: Handle,
    check: Handle,
    gather: Handle,
    checksums: Handle,
    resident: Handle,
}

/// What the check kernel counts into: device memory, laid out as in `base.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckResult {
    pub(crate) wrong_bytes: u64,
    pub(crate) first_wrong: u64,
}

impl CheckResult {
    /// Nothing wrong so far; the kernel takes the least of the offsets.
    pub(crate) const START: Self = Self { wrong_bytes: 0, first_wrong: u64::MAX };
}

impl From<CheckResult> for PatternCheck {
    fn from(result: CheckResult) -> Self {
        let first_wrong = if result.wrong_bytes == 0 { 0 } else { result.first_wrong };
        Self { wrong_bytes: result.wrong_bytes, first_wrong }
    }
}

impl Kernels {
    /// Loads the kernels into the current context, that of a GPU with this capability. The module stays loaded as long
    /// as that context.
    pub(super) fn load(driver: &CudaDriver, capability: (i32, i32)) -> Result<Self> {
        let explain = |failure: CudaFailure| {
            Error::from(failure)
                .hint("the scatter, checksum and verify kernels cannot run here; copies still work")
        };
        let module = images::load(driver, capability).map_err(explain)?;
        let function = |name: &CStr| {
            let mut function = 0;
            // SAFETY: `function` is a valid place, the module was loaded above.
            unsafe { driver.symbols.cuModuleGetFunction(&raw mut function, module, name.as_ptr()) }
                .map_err(explain)?;
            Ok::<_, Error>(function)
        };
        Ok(Self {
            scatter: function(SCATTER)?,
            fill: function(FILL)?,
            check: function(CHECK)?,
            gather: function(GATHER)?,
            checksums: function(CHECKSUMS)?,
            resident: function(RESIDENT)?,
        })
    }

    /// # Safety
    /// As [`crate::Stream::scatter`]; the stream's context is current.
    pub(super) unsafe fn scatter(
        self,
        driver: &CudaDriver,
        stream: Handle,
        list: u64,
        count: u32,
        longest: usize,
    ) -> Result<(), CudaFailure> {
        let (parts, threads) = scatter_shape(count as usize, longest);
        let (mut list, mut count) = (list, count);
        let mut parameters = [(&raw mut list).cast::<c_void>(), (&raw mut count).cast()];
        // SAFETY: the parameters are those of `forebay_scatter`.
        unsafe { launch(driver, self.scatter, (count, parts), threads, stream, &mut parameters) }
    }

    /// # Safety
    /// As [`crate::Stream::gather`]; the stream's context is current.
    pub(super) unsafe fn gather(
        self,
        driver: &CudaDriver,
        stream: Handle,
        gather: &Gather,
    ) -> Result<(), CudaFailure> {
        let grid = gather_shape(gather.count, gather.piece);
        let mut gather = *gather;
        let mut parameters = [
            (&raw mut gather.base).cast::<c_void>(),
            (&raw mut gather.len).cast(),
            (&raw mut gather.offsets).cast(),
            (&raw mut gather.count).cast(),
            (&raw mut gather.piece).cast(),
            (&raw mut gather.out).cast(),
            (&raw mut gather.report).cast(),
        ];
        // SAFETY: the parameters are those of `forebay_gather`.
        unsafe { launch(driver, self.gather, grid, BLOCK_THREADS as c_uint, stream, &mut parameters) }
    }

    /// # Safety
    /// As [`crate::Stream::checksums`]; the stream's context is current.
    pub(super) unsafe fn checksums(
        self,
        driver: &CudaDriver,
        stream: Handle,
        list: u64,
        count: u32,
        results: u64,
    ) -> Result<(), CudaFailure> {
        let grid = (count.div_ceil((BLOCK_THREADS / WARP) as c_uint), 1);
        let (mut list, mut results, mut count) = (list, results, count);
        let mut parameters =
            [(&raw mut list).cast::<c_void>(), (&raw mut results).cast(), (&raw mut count).cast()];
        // SAFETY: the parameters are those of `forebay_checksums`.
        unsafe { launch(driver, self.checksums, grid, BLOCK_THREADS as c_uint, stream, &mut parameters) }
    }

    /// # Safety
    /// As [`crate::Stream::resident`]; the stream's context is current, and `stream_number` is this stream's alone.
    pub(super) unsafe fn resident(
        self,
        driver: &CudaDriver,
        stream: Handle,
        resident: &Resident,
        stream_number: u32,
    ) -> Result<(), CudaFailure> {
        let grid = (resident.count.min(Resident::BLOCKS), 1);
        let (mut resident, mut stream_number) = (*resident, stream_number);
        let mut parameters = [
            (&raw mut resident.mailboxes).cast::<c_void>(),
            (&raw mut resident.count).cast(),
            (&raw mut resident.idle).cast(),
            (&raw mut resident.life).cast(),
            (&raw mut resident.ended).cast(),
            (&raw mut resident.number).cast(),
            (&raw mut stream_number).cast(),
        ];
        // SAFETY: the parameters are those of `forebay_resident`.
        unsafe { launch(driver, self.resident, grid, BLOCK_THREADS as c_uint, stream, &mut parameters) }
    }

    /// # Safety
    /// As [`crate::Stream::fill_pattern`]; the stream's context is current.
    pub(super) unsafe fn fill(
        self,
        driver: &CudaDriver,
        stream: Handle,
        [dst, len, key, offset]: [u64; 4],
    ) -> Result<(), CudaFailure> {
        let (mut dst, mut len, mut key, mut offset) = (dst, len, key, offset);
        let mut parameters = [
            (&raw mut dst).cast::<c_void>(),
            (&raw mut len).cast(),
            (&raw mut key).cast(),
            (&raw mut offset).cast(),
        ];
        let grid = (pattern_blocks(len), 1);
        // SAFETY: the parameters are those of `forebay_fill`.
        unsafe { launch(driver, self.fill, grid, BLOCK_THREADS as c_uint, stream, &mut parameters) }
    }

    /// # Safety
    /// As [`crate::Stream::check_pattern`]; `result` is the device address of a [`CheckResult`], and the stream's
    /// context is current.
    pub(super) unsafe fn check(
        self,
        driver: &CudaDriver,
        stream: Handle,
        [src, len, key, offset]: [u64; 4],
        result: u64,
    ) -> Result<(), CudaFailure> {
        let (mut src, mut len, mut key, mut offset, mut result) = (src, len, key, offset, result);
        let mut parameters = [
            (&raw mut src).cast::<c_void>(),
            (&raw mut len).cast(),
            (&raw mut key).cast(),
            (&raw mut offset).cast(),
            (&raw mut result).cast(),
        ];
        let grid = (pattern_blocks(len), 1);
        // SAFETY: the parameters are those of `forebay_check`.
        unsafe { launch(driver, self.check, grid, BLOCK_THREADS as c_uint, stream, &mut parameters) }
    }
}

/// The grid of a gather whose blocks all have [`BLOCK_THREADS`] threads: enough blocks in x for all pieces, but no
/// more than run at once (each walks over the pieces in strides of the grid), and in y the parts that a piece is cut
/// into where there are few pieces.
fn gather_shape(count: u64, piece: u64) -> (c_uint, c_uint) {
    let (pieces_of_a_block, useful) = if piece < GATHER_BLOCK_BYTES {
        // As in the kernel: a group of lanes for each piece, 16 bytes a lane, at most a warp.
        let lanes = piece.div_ceil(16).next_power_of_two().clamp(1, WARP as u64);
        (BLOCK_THREADS as u64 / lanes, piece.div_ceil((WARP * THREAD_BYTES) as u64))
    } else {
        (1, piece.div_ceil((BLOCK_THREADS * THREAD_BYTES) as u64))
    };
    let blocks = count.div_ceil(pieces_of_a_block).clamp(1, GATHER_BLOCKS);
    let parts = useful.min(GATHER_BLOCKS / blocks).clamp(1, GRID_Y_MAX as u64);
    (blocks as c_uint, parts as c_uint)
}

/// How many blocks share a piece, and the threads of each block.
fn scatter_shape(count: usize, longest: usize) -> (c_uint, c_uint) {
    let threads = longest.div_ceil(THREAD_BYTES).next_multiple_of(WARP).clamp(WARP, BLOCK_THREADS);
    let useful = longest.div_ceil(PART_BYTES);
    let wanted = ENOUGH_BLOCKS.div_ceil(count.max(1));
    (useful.min(wanted).clamp(1, GRID_Y_MAX) as c_uint, threads as c_uint)
}

fn pattern_blocks(len: u64) -> c_uint {
    (len as usize).div_ceil(8 * BLOCK_THREADS).clamp(1, PATTERN_BLOCKS) as c_uint
}

/// # Safety
/// `function` is a kernel of the current context and `parameters` point to what it takes; the stream is live.
unsafe fn launch(
    driver: &CudaDriver,
    function: Handle,
    grid: (c_uint, c_uint),
    threads: c_uint,
    stream: Handle,
    parameters: &mut [*mut c_void],
) -> Result<(), CudaFailure> {
    // SAFETY: the caller keeps the contract; the driver copies the parameters before it returns.
    unsafe {
        driver.symbols.cuLaunchKernel(
            function,
            grid.0,
            grid.1,
            1,
            threads,
            1,
            1,
            0,
            stream,
            parameters.as_mut_ptr(),
            std::ptr::null_mut(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_images_have_all_kernels() {
        for name in [SCATTER, FILL, CHECK, GATHER, CHECKSUMS, RESIDENT] {
            assert!(images::tests::is_everywhere(name.to_str().unwrap()), "{name:?}");
        }
    }

    #[test]
    fn blocks_fit_the_pieces() {
        assert_eq!(scatter_shape(1, 0), (1, 32));
        assert_eq!(scatter_shape(1, 1), (1, 32));
        assert_eq!(scatter_shape(1000, 4096), (1, 64));
        assert_eq!(scatter_shape(1, 1 << 20), (16, 256));
        assert_eq!(scatter_shape(1_000_000, 1 << 20), (1, 256));
        assert_eq!(scatter_shape(1, 1 << 40).0, 4096);
    }

    #[test]
    fn a_gather_fills_the_device_and_no_more() {
        assert_eq!(gather_shape(1, 0), (1, 1));
        assert_eq!(gather_shape(1, 1), (1, 1));
        assert_eq!(gather_shape(1 << 20, 512), (1056, 1));
        assert_eq!(gather_shape(1 << 20, 4096), (1056, 1));
        assert_eq!(gather_shape(64, 4096), (8, 2), "a warp for each piece's half");
        assert_eq!(gather_shape(100, 16), (1, 1), "a lane for each piece");
        assert_eq!(gather_shape(1 << 16, 64 << 10), (1056, 1));
        assert_eq!(gather_shape(4, 64 << 10), (4, 4));
        assert_eq!(gather_shape(1, 1 << 40), (1, 1056));
        assert_eq!(gather_shape(u64::MAX, u64::MAX), (1056, 1));
    }
}
