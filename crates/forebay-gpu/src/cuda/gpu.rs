//! A GPU: its primary context, its compiled kernels, its features.

use std::collections::HashMap;
use std::ffi::c_int;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use forebay_error::{Error, ErrorKind, Result};

use super::driver::CudaDriver;
use super::error::CudaFailure;
use super::guard::ContextGuard;
use super::kernels::Kernels;
use super::sys::{
    ATTRIBUTE_64_BIT_STREAM_MEM_OPS, ATTRIBUTE_CAPABILITY_MAJOR, ATTRIBUTE_CAPABILITY_MINOR,
    ATTRIBUTE_STREAM_MEM_OPS_V1, Handle,
};
use crate::{Context, DeviceInfo};

/// One GPU. Lives as long as the process.
pub(crate) struct CudaGpu {
    pub(crate) driver: &'static CudaDriver,
    pub(crate) device: c_int,
    pub(crate) info: DeviceInfo,
    /// The primary context, 0 until it is needed.
    primary: AtomicU64,
    /// Held while the primary context is retained.
    retaining: Mutex<()>,
    /// Numbers that are taken by streams which run resident kernels: a bit for each number.
    resident_numbers: AtomicU64,
    /// Kernels by context; held while they are loaded.
    kernels: Mutex<HashMap<u64, Kernels>>,
}

impl fmt::Debug for CudaGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpu").field("info", &self.info).finish_non_exhaustive()
    }
}

impl CudaGpu {
    /// Asks the driver what the device is. Creates no context.
    pub(crate) fn new(driver: &'static CudaDriver, ordinal: i32) -> Result<Self> {
        let device = driver.device(ordinal)?;
        let pci = driver.device_pci(device).unwrap_or_default();
        let info = DeviceInfo {
            index: ordinal as usize,
            name: driver.device_name(device)?,
            uuid: driver.device_uuid(device).unwrap_or_default(),
            numa_node: numa_node(&pci),
            pci,
            total_memory: driver.device_memory(device)?,
            driver_version: driver.version()?,
            capability: (
                driver.attribute(device, ATTRIBUTE_CAPABILITY_MAJOR)?,
                driver.attribute(device, ATTRIBUTE_CAPABILITY_MINOR)?,
            ),
            is_host: false,
            is_bar: false,
        };
        Ok(Self {
            driver,
            device,
            info,
            primary: AtomicU64::new(0),
            retaining: Mutex::default(),
            resident_numbers: AtomicU64::new(0),
            kernels: Mutex::default(),
        })
    }

    /// The primary context, created if need be and kept for good: the process's other CUDA users share it.
    #[inline]
    pub(crate) fn primary(&self) -> Result<Handle, CudaFailure> {
        match self.primary.load(Ordering::Acquire) {
            0 => self.retain_primary(),
            context => Ok(context),
        }
    }

    #[cold]
    fn retain_primary(&self) -> Result<Handle, CudaFailure> {
        let _one_at_a_time = self.retaining.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.primary.load(Ordering::Acquire);
        if known != 0 {
            return Ok(known);
        }
        let _guard = ContextGuard::relaxed(self.driver);
        let mut context = 0;
        // SAFETY: `context` is a valid place for a handle.
        unsafe { self.driver.symbols.cuDevicePrimaryCtxRetain(&raw mut context, self.device) }?;
        self.primary.store(context, Ordering::Release);
        Ok(context)
    }

    /// The primary context if it exists, from any library of the process. Creates none.
    pub(crate) fn primary_if_active(&self) -> Option<Handle> {
        let known = self.primary.load(Ordering::Acquire);
        if known != 0 {
            return Some(known);
        }
        let (mut flags, mut active) = (0, 0);
        // SAFETY: both are valid places.
        unsafe {
            self.driver.symbols.cuDevicePrimaryCtxGetState(self.device, &raw mut flags, &raw mut active)
        }
        .ok()?;
        if active == 0 { None } else { self.retain_primary().ok() }
    }

    /// The raw handle of a [`Context`].
    #[inline]
    pub(crate) fn raw(&self, context: Context) -> Result<Handle, CudaFailure> {
        if context == Context::PRIMARY { self.primary() } else { Ok(context.0) }
    }

    /// The [`Context`] of a raw handle. A null handle (pool and virtual-memory allocations have no context of their
    /// own) means the primary one.
    pub(crate) fn context(&self, raw: Handle) -> Context {
        if raw == 0 || self.primary_if_active() == Some(raw) { Context::PRIMARY } else { Context(raw) }
    }

    /// Makes a context current for one call.
    #[inline]
    pub(crate) fn enter(&self, context: Handle) -> Result<ContextGuard, CudaFailure> {
        ContextGuard::enter(self.driver, context)
    }

    /// Makes the primary context current for one call.
    #[inline]
    pub(crate) fn enter_primary(&self) -> Result<ContextGuard, CudaFailure> {
        self.enter(self.primary()?)
    }

    /// The kernels of `context`, which must be current. Loads them on the first call for that context.
    pub(crate) fn kernels(&self, context: Handle) -> Result<Kernels> {
        let key = self.identity(context).unwrap_or(context);
        let mut compiled = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernels) = compiled.get(&key) {
            return Ok(*kernels);
        }
        let kernels = Kernels::load(self.driver, self.info.capability)
            .map_err(|error| error.with("device", self.info.index).with("gpu", &self.info.name))?;
        compiled.insert(key, kernels);
        Ok(kernels)
    }

    /// Takes a number for a stream that runs resident kernels. No other such stream has it. There are 64, as in `resident.cuh`.
    pub(super) fn take_resident_number(&self) -> Result<u32> {
        let lowest = |taken: u64| (taken != u64::MAX).then(|| taken | (taken + 1));
        let before = self.resident_numbers.try_update(Ordering::AcqRel, Ordering::Relaxed, lowest);
        let none = |_| Error::new(ErrorKind::Unsupported, "too many streams run resident kernels");
        before.map(u64::trailing_ones).map_err(none)
    }

    /// Gives such a number back.
    pub(super) fn give_resident_number(&self, number: u32) {
        self.resident_numbers.fetch_and(!(1 << number), Ordering::AcqRel);
    }

    /// What names a context for good: its handle may be given to another one once it is destroyed or reset. `None`: it is gone,
    /// or the driver is older than 12.0.
    fn identity(&self, context: Handle) -> Option<u64> {
        let mut id = 0;
        // SAFETY: `id` is a valid place; the driver knows the handles that it has given.
        unsafe { self.driver.symbols.cuCtxGetId(context, &raw mut id) }.ok().map(|()| id)
    }

    /// Whether streams can write words and wait for them here, whatever the function is called.
    pub(crate) fn has_memory_operations(&self) -> bool {
        let can = |attribute| self.driver.attribute(self.device, attribute).unwrap_or(0) != 0;
        can(ATTRIBUTE_STREAM_MEM_OPS_V1) || can(ATTRIBUTE_64_BIT_STREAM_MEM_OPS)
    }

    /// Which form of the stream wait works here, if any.
    pub(crate) fn wait_value_form(&self) -> Result<WaitValueForm> {
        let can = |attribute| self.driver.attribute(self.device, attribute).unwrap_or(0) != 0;
        let first = can(ATTRIBUTE_STREAM_MEM_OPS_V1);
        if self.driver.symbols.has_wait_value_v2() && (first || can(ATTRIBUTE_64_BIT_STREAM_MEM_OPS)) {
            return Ok(WaitValueForm::Second);
        }
        if first {
            return Ok(WaitValueForm::First);
        }
        Err(Error::new(ErrorKind::Unsupported, "the GPU or its driver lacks stream memory operations")
            .with("device", self.info.index))
    }
}

/// The context of something that we are to destroy, as it was when that was made.
#[derive(Debug)]
pub(super) struct OwningContext {
    gpu: &'static CudaGpu,
    handle: Handle,
    identity: Option<u64>,
}

impl OwningContext {
    pub(super) fn new(gpu: &'static CudaGpu, handle: Handle) -> Self {
        Self { gpu, handle, identity: gpu.identity(handle) }
    }

    /// Makes it current. `None`: it was destroyed or reset, and what it owned went with it. The driver follows the handle of a
    /// stream or an event into freed memory then.
    pub(super) fn enter(&self) -> Option<ContextGuard> {
        if self.gpu.identity(self.handle) == self.identity { self.gpu.enter(self.handle).ok() } else { None }
    }
}

/// The two forms of the driver's stream wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitValueForm {
    First,
    Second,
}

/// The NUMA node of a PCI device; systems with one node often say -1, which is none.
fn numa_node(pci: &str) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/sys/bus/pci/devices/{pci}/numa_node")).ok()?;
    text.trim().parse().ok()
}
