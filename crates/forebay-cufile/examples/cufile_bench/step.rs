//! A training step as the GPU sees one: kernels of about 100 µs, events, stream-ordered allocations and a cooperative
//! launch, and then a wait for the whole device. It tells how long both take: alone, beside the work, and, as a floor, beside a
//! kernel that only sleeps and beside threads that only spin.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::cuda::{Gpu, done, driver, open_driver};

driver! { StepDriver {
    cuModuleLoadData: fn(*mut usize, *const c_char);
    cuModuleGetFunction: fn(*mut usize, usize, *const c_char);
    cuLaunchKernel: fn(usize, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, usize, *mut *mut c_void, *mut *mut c_void);
    cuLaunchCooperativeKernel: fn(usize, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, usize, *mut *mut c_void);
    cuDeviceGetAttribute: fn(*mut c_int, c_int, c_int);
    cuDeviceGetDefaultMemPool: fn(*mut usize, c_int);
    cuMemPoolSetAttribute: fn(usize, c_int, *mut u64);
    cuMemAllocAsync: fn(*mut usize, usize, usize);
    cuMemFreeAsync: fn(usize, usize);
    cuMemsetD8Async: fn(usize, u8, usize, usize);
    cuMemHostAlloc: fn(*mut *mut c_void, usize, c_uint);
    cuEventCreate: fn(*mut usize, c_uint);
    cuEventRecord: fn(usize, usize);
    cuEventSynchronize: fn(usize);
    cuCtxSynchronize: fn();
} }

/// `count` dependent multiplications and additions by each thread; the store keeps the compiler from dropping them.
const KERNEL: &std::ffi::CStr = c"
.version 6.4
.target sm_75
.address_size 64
.visible .entry train(.param .u64 sink, .param .u32 count)
{
    .reg .pred %p<3>;
    .reg .f32 %f<3>;
    .reg .u32 %r<3>;
    .reg .u64 %rd<2>;
    ld.param.u64 %rd1, [sink];
    ld.param.u32 %r1, [count];
    mov.f32 %f1, 0f3F800000;
    mov.f32 %f2, 0f3F7FFFFE;
AGAIN:
    fma.rn.f32 %f1, %f1, %f2, %f2;
    sub.u32 %r1, %r1, 1;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra AGAIN;
    setp.neu.f32 %p2, %f1, 0f00000000;
    @%p2 bra END;
    st.global.f32 [%rd1], %f1;
END:
    ret;
}
.visible .entry look(.param .u64 life, .param .u64 word)
{
    .reg .pred %p<3>;
    .reg .u32 %r<3>;
    .reg .u64 %rd<5>;
    mov.u32 %r1, %tid.x;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra WAIT;
    ld.param.u64 %rd1, [life];
    ld.param.u64 %rd4, [word];
    mov.u64 %rd2, %globaltimer;
LOOK:
    ld.volatile.global.u32 %r2, [%rd4];
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd3, %rd3, %rd2;
    setp.lt.u64 %p2, %rd3, %rd1;
    @%p2 bra LOOK;
WAIT:
    bar.sync 0;
    ret;
}
.visible .entry sleep(.param .u64 life)
{
    .reg .pred %p1;
    .reg .u64 %rd<4>;
    ld.param.u64 %rd1, [life];
    mov.u64 %rd2, %globaltimer;
MORE:
    nanosleep.u32 200;
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd3, %rd3, %rd2;
    setp.lt.u64 %p1, %rd3, %rd1;
    @%p1 bra MORE;
    ret;
}
";
const BLOCK: c_uint = 256;
/// Blocks of a kernel for each multiprocessor: four times as many as it holds at once.
const WAVES: c_uint = 32;
const KERNELS: usize = 8;
/// How long a kernel that does nothing of use is there, and the pause until the next one.
const STAY_NS: u64 = 970_000;
const STAY_PAUSE: Duration = Duration::from_micros(20);
const KERNEL_LENGTH: Duration = Duration::from_micros(100);
const SCRATCH: usize = 4 << 20;
const MULTIPROCESSOR_COUNT: c_int = 16;
const RELEASE_THRESHOLD: c_int = 4;

/// What a thread needs to run steps.
#[derive(Debug)]
pub(crate) struct Training<'a> {
    gpu: &'a Gpu,
    driver: StepDriver,
    kernel: usize,
    sleeper: usize,
    looker: usize,
    /// Pinned memory.
    word: usize,
    processors: c_uint,
    stream: usize,
    event: usize,
    count: c_uint,
}

impl<'a> Training<'a> {
    /// Loads the kernel and finds how much work is 100 µs.
    pub(crate) fn new(gpu: &'a Gpu, ordinal: c_int) -> Result<Self, String> {
        let (library, path) = open_driver()?;
        let driver = StepDriver::load(&library, &path)?;
        std::mem::forget(library);
        let (mut module, mut kernel, mut sleeper, mut looker, mut event, mut processors, mut pool, mut kept) =
            (0, 0, 0, 0, 0, 0, 0, u64::MAX);
        let mut word = null_mut();
        // SAFETY: valid places for the answers, and a text that ends with zero.
        unsafe {
            done("cuModuleLoadData", (driver.cuModuleLoadData)(&raw mut module, KERNEL.as_ptr()))?;
            let found = (driver.cuModuleGetFunction)(&raw mut kernel, module, c"train".as_ptr());
            done("cuModuleGetFunction", found)?;
            let found = (driver.cuModuleGetFunction)(&raw mut sleeper, module, c"sleep".as_ptr());
            done("cuModuleGetFunction", found)?;
            let found = (driver.cuModuleGetFunction)(&raw mut looker, module, c"look".as_ptr());
            done("cuModuleGetFunction", found)?;
            done("cuMemHostAlloc", (driver.cuMemHostAlloc)(&raw mut word, 4096, 0))?;
            done("cuEventCreate", (driver.cuEventCreate)(&raw mut event, 0))?;
            let known = (driver.cuDeviceGetAttribute)(&raw mut processors, MULTIPROCESSOR_COUNT, ordinal);
            done("cuDeviceGetAttribute", known)?;
            // As frameworks do: freed memory stays in the pool, or each step would ask the system for it anew.
            let found = (driver.cuDeviceGetDefaultMemPool)(&raw mut pool, ordinal);
            done("cuDeviceGetDefaultMemPool", found)?;
            let set = (driver.cuMemPoolSetAttribute)(pool, RELEASE_THRESHOLD, &raw mut kept);
            done("cuMemPoolSetAttribute", set)?;
        }
        let processors = c_uint::try_from(processors).map_err(|error| error.to_string())?;
        let stream = gpu.stream(true)?;
        let mut training = Self {
            gpu,
            driver,
            kernel,
            sleeper,
            looker,
            word: word as usize,
            processors,
            stream,
            event,
            count: 1 << 14,
        };
        training.time_of_kernels()?;
        let each = training.time_of_kernels()?;
        let scale = KERNEL_LENGTH.as_secs_f64() / each.as_secs_f64();
        training.count = (f64::from(training.count) * scale).max(1.0) as c_uint;
        Ok(training)
    }

    /// The same steps, for `limit` each, beside kernels of some blocks that only sleep, or look at host memory, and beside threads that only spin.
    pub(crate) fn floors(&self, threads: u64, limit: Duration) -> Result<Value, String> {
        let mut floors = json!({});
        let kernels = [("sleep", self.sleeper), ("look at host memory", self.looker)];
        for (blocks, (what, kernel)) in
            [1, 32].into_iter().flat_map(|blocks| kernels.map(|one| (blocks, one)))
        {
            let stay = |stop: &AtomicBool| self.stay_beside(kernel, blocks, stop);
            floors[format!("{blocks} blocks that {what}")] = self.run_beside(1, limit, stay)?;
        }
        let spin = |stop: &AtomicBool| {
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
            Ok(())
        };
        floors[format!("{threads} spinning threads")] = self.run_beside(threads, limit, spin)?;
        Ok(floors)
    }

    fn run_beside(
        &self,
        threads: u64,
        limit: Duration,
        work: impl Fn(&AtomicBool) -> Result<(), String> + Sync,
    ) -> Result<Value, String> {
        let (stop, end) = (AtomicBool::new(false), Instant::now() + limit);
        std::thread::scope(|scope| {
            let others: Vec<_> = (0..threads).map(|_| scope.spawn(|| work(&stop))).collect();
            let told = self.run(|| Instant::now() >= end);
            stop.store(true, Ordering::Relaxed);
            for other in others {
                other.join().map_err(|_| "a thread beside the steps died".to_owned())??;
            }
            told
        })
    }

    /// Kernels of this many blocks, one after the other, as long as a life of forebay's resident kernel each.
    fn stay_beside(&self, kernel: usize, blocks: c_uint, stop: &AtomicBool) -> Result<(), String> {
        self.gpu.enter()?;
        let stream = self.gpu.stream(true)?;
        let (mut life, mut word) = (STAY_NS, self.word);
        let mut parameters: [*mut c_void; 2] = [(&raw mut life).cast(), (&raw mut word).cast()];
        while !stop.load(Ordering::Relaxed) {
            let words = parameters.as_mut_ptr();
            // SAFETY: the parameters are those of the kernel, which reads the word at most.
            done("cuLaunchKernel", unsafe {
                (self.driver.cuLaunchKernel)(kernel, blocks, 1, 1, BLOCK, 1, 1, 0, stream, words, null_mut())
            })?;
            std::thread::sleep(Duration::from_nanos(STAY_NS) + STAY_PAUSE);
        }
        Ok(())
    }

    /// Steps until `stop` says so: how long one took, and how long the wait for the device after it.
    pub(crate) fn run(&self, stop: impl Fn() -> bool) -> Result<Value, String> {
        self.gpu.enter()?;
        let histogram =
            || Histogram::<u64>::new_with_bounds(1, 600_000_000_000, 3).map_err(|error| error.to_string());
        let (mut steps, mut waits) = (histogram()?, histogram()?);
        while !stop() {
            let begun = Instant::now();
            self.step()?;
            steps.saturating_record(begun.elapsed().as_nanos() as u64);
            let stepped = Instant::now();
            self.wait_for_device()?;
            waits.saturating_record(stepped.elapsed().as_nanos() as u64);
        }
        let figures = |times: &Histogram<u64>| {
            let at = |quantile| times.value_at_quantile(quantile) as f64 / 1e3;
            json!({ "mean": times.mean() / 1e3, "p50": at(0.5), "p99": at(0.99), "max": times.max() as f64 / 1e3 })
        };
        Ok(json!({ "steps": steps.len(), "step_us": figures(&steps), "sync_us": figures(&waits) }))
    }

    fn step(&self) -> Result<(), String> {
        let mut scratch = 0;
        // SAFETY: a valid place for an address; memory of the stream, used before it is freed there; a live event.
        unsafe {
            let driver = &self.driver;
            done("cuMemAllocAsync", (driver.cuMemAllocAsync)(&raw mut scratch, SCRATCH, self.stream))?;
            done("cuMemsetD8Async", (driver.cuMemsetD8Async)(scratch, 0, SCRATCH, self.stream))?;
            for _ in 0..KERNELS {
                self.launch(false)?;
                done("cuEventRecord", (driver.cuEventRecord)(self.event, self.stream))?;
            }
            self.launch(true)?;
            done("cuMemFreeAsync", (driver.cuMemFreeAsync)(scratch, self.stream))?;
            done("cuEventRecord", (driver.cuEventRecord)(self.event, self.stream))?;
            done("cuEventSynchronize", (driver.cuEventSynchronize)(self.event))
        }
    }

    /// Mean time of a kernel, alone.
    fn time_of_kernels(&self) -> Result<Duration, String> {
        self.wait_for_device()?;
        let begun = Instant::now();
        for _ in 0..KERNELS {
            self.launch(false)?;
        }
        self.wait_for_device()?;
        Ok(begun.elapsed() / KERNELS as u32)
    }

    /// A cooperative launch has as many blocks as fit at once, so that it waits until the GPU has room for all.
    fn launch(&self, cooperative: bool) -> Result<(), String> {
        let (mut sink, mut count) = (0_usize, self.count);
        let mut parameters: [*mut c_void; 2] = [(&raw mut sink).cast(), (&raw mut count).cast()];
        let (driver, words) = (&self.driver, parameters.as_mut_ptr());
        // SAFETY: the parameters are those of the kernel, which never stores: its value cannot be zero.
        unsafe {
            if cooperative {
                let blocks = self.processors * 2;
                let answer = (driver.cuLaunchCooperativeKernel)(
                    self.kernel,
                    blocks,
                    1,
                    1,
                    BLOCK,
                    1,
                    1,
                    0,
                    self.stream,
                    words,
                );
                return done("cuLaunchCooperativeKernel", answer);
            }
            let blocks = self.processors * WAVES;
            let answer = (driver.cuLaunchKernel)(
                self.kernel,
                blocks,
                1,
                1,
                BLOCK,
                1,
                1,
                0,
                self.stream,
                words,
                null_mut(),
            );
            done("cuLaunchKernel", answer)
        }
    }

    fn wait_for_device(&self) -> Result<(), String> {
        // SAFETY: no arguments.
        done("cuCtxSynchronize", unsafe { (self.driver.cuCtxSynchronize)() })
    }
}
