//! The software GPU as a program uses it: memory, the default stream, streams of one's own.

use std::ffi::{c_int, c_uchar, c_void};
use std::sync::OnceLock;

use fake_cuda::Fake;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// The GPU of this process.
pub struct Gpu {
    pub fake: &'static Fake,
    context: u64,
    set: unsafe extern "C" fn(u64, c_uchar, usize, u64) -> c_int,
    copy_in: unsafe extern "C" fn(u64, *const c_void, usize, u64) -> c_int,
    synchronize: unsafe extern "C" fn(u64) -> c_int,
    host_alloc: unsafe extern "C" fn(*mut *mut c_void, usize, u32) -> c_int,
    host_free: unsafe extern "C" fn(*mut c_void) -> c_int,
    _library: Library,
}

/// The default streams: the legacy one by both its names, and the calling thread's own.
pub const DEFAULT_STREAMS: &[u64] = &[0, 1, 2];

/// Loads the GPU, and makes its primary context current on this thread.
pub fn gpu() -> &'static Gpu {
    static LOADED: OnceLock<Gpu> = OnceLock::new();
    let gpu = LOADED.get_or_init(|| Gpu::load().expect("the software GPU can be loaded"));
    gpu.fake.set_current_context(gpu.context).expect("the primary context");
    gpu
}

fn done(what: &str, code: c_int) {
    assert_eq!(code, 0, "{what}");
}

impl Gpu {
    fn load() -> Result<Self, Box<dyn std::error::Error>> {
        let fake = fake_cuda::install()?;
        let path = std::env::var_os("FOREBAY_LIBCUDA").unwrap_or_default();
        // SAFETY: the library is the fake, which is loaded already.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }?;
        // SAFETY: the driver's function of this type.
        let init = unsafe { library.get::<unsafe extern "C" fn(u32) -> c_int>(b"cuInit\0")? };
        // SAFETY: as above.
        done("cuInit", unsafe { init(0) });
        // SAFETY: the driver's functions of these types.
        unsafe {
            Ok(Self {
                fake,
                context: fake.retain_primary(0)?,
                set: *library.get(b"cuMemsetD8Async\0")?,
                copy_in: *library.get(b"cuMemcpyHtoDAsync_v2\0")?,
                synchronize: *library.get(b"cuStreamSynchronize\0")?,
                host_alloc: *library.get(b"cuMemHostAlloc\0")?,
                host_free: *library.get(b"cuMemFreeHost\0")?,
                _library: library,
            })
        }
    }

    pub fn memory(&'static self, len: usize) -> Memory {
        let address = self.fake.allocate(len).expect("memory of the GPU");
        Memory { gpu: self, address }
    }

    /// Queues setting memory on a stream.
    pub fn set(&self, address: u64, value: u8, len: usize, stream: u64) {
        // SAFETY: the driver looks up the addresses.
        done("cuMemsetD8Async", unsafe { (self.set)(address, value, len, stream) });
    }

    /// Queues a copy from pinned memory, which must live until then.
    pub fn copy_in(&self, address: u64, from: &Pinned, len: usize, stream: u64) {
        // SAFETY: `from` is pinned memory of that length.
        done("cuMemcpyHtoDAsync", unsafe { (self.copy_in)(address, from.address.cast_const(), len, stream) });
    }

    pub fn synchronize(&self, stream: u64) {
        // SAFETY: no pointers are passed.
        done("cuStreamSynchronize", unsafe { (self.synchronize)(stream) });
    }

    pub fn pinned(&'static self, bytes: &[u8]) -> Pinned {
        let mut address = std::ptr::null_mut();
        // SAFETY: the place is valid.
        done("cuMemHostAlloc", unsafe { (self.host_alloc)(&raw mut address, bytes.len(), 0) });
        // SAFETY: the new memory has this length.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address.cast(), bytes.len()) };
        Pinned { gpu: self, address }
    }
}

/// Memory of the GPU.
pub struct Memory {
    gpu: &'static Gpu,
    pub address: u64,
}

impl Memory {
    /// Writes to it past all streams.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        assert!(self.gpu.fake.write(self.address + at as u64, bytes), "memory of the GPU");
    }

    /// Reads it past all streams.
    pub fn get(&self, at: usize, len: usize) -> Vec<u8> {
        self.gpu.fake.read(self.address + at as u64, len).expect("memory of the GPU")
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = gpu().fake.free(self.address);
    }
}

/// Pinned host memory.
pub struct Pinned {
    gpu: &'static Gpu,
    address: *mut c_void,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: it is freed once.
        unsafe { (self.gpu.host_free)(self.address) };
    }
}
