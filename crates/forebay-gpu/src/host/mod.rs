//! Host memory as a device: what the CPU-only machine and host targets use.

mod device;
mod memory;
mod stream;

use std::sync::{Arc, OnceLock};

use crate::Device;

pub(crate) use memory::{allocate, free};
pub(crate) use stream::{HostStream, check_offset};

/// Host memory as a device. The same one at each call.
pub fn device() -> Arc<dyn Device> {
    static DEVICE: OnceLock<Arc<dyn Device>> = OnceLock::new();
    DEVICE.get_or_init(|| Arc::new(device::HostDevice::new())).clone()
}
