//! A protection domain on a device, as its users have it.

use std::ffi::{CStr, c_int};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use forebay_error::Result;

use super::cm::Id;
use super::connection::VerbsConnection;
use super::errors::{check_errno, made};
use super::load::Libraries;
use super::memory::{Inner, Mw};
use super::pair::QueuePair;
use super::sys;
use super::unpaired::VerbsUnpaired;
use crate::{
    Access, Connection, Device, DeviceLimits, Domain, Memory, Options, Region, Transport, UnpairedEnd, Why,
    Window,
};

pub(super) struct VerbsDomain {
    pub(super) inner: Arc<Inner>,
    from: Option<IpAddr>,
}

impl VerbsDomain {
    /// A new domain on the device that the anchor is bound to.
    pub(super) fn new(libraries: &'static Libraries, anchor: Id, from: Option<IpAddr>) -> Result<Self> {
        let context = anchor.context();
        if context.is_null() {
            return Err(Why::NoRoute.error("cannot open an RDMA device: none is on the route"));
        }
        // SAFETY: the context is open as long as the anchor is; zero is a value of each field.
        let (mut device, attributes) = unsafe {
            let mut attributes: sys::DeviceAttr = std::mem::zeroed();
            check_errno(
                libraries.ibv.ibv_query_device(context, &raw mut attributes),
                "cannot query the RDMA device",
            )?;
            (describe(libraries, (*context).device), attributes)
        };
        let byte = |value: c_int| u8::try_from(value.clamp(0, 255)).unwrap_or(u8::MAX);
        device.windows = Some(attributes.device_cap_flags & sys::CAP_WINDOW_2B != 0);
        device.reads = u32::try_from(attributes.max_qp_rd_atom).ok();
        device.limits = Some(DeviceLimits {
            region_bytes: attributes.max_mr_size,
            regions: u32::try_from(attributes.max_mr).unwrap_or_default(),
            flags: attributes.device_cap_flags,
        });
        let limits = (byte(attributes.max_qp_rd_atom), byte(attributes.max_qp_init_rd_atom));
        // SAFETY: as above.
        let pd = made(unsafe { libraries.ibv.ibv_alloc_pd(context) }, "cannot make a protection domain")?;
        Ok(Self { inner: Arc::new(Inner { libraries, pd, device, limits, anchor }), from })
    }
}

impl fmt::Debug for VerbsDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsDomain").field("device", &self.inner.device).finish_non_exhaustive()
    }
}

impl Domain for VerbsDomain {
    fn device(&self) -> &Device {
        &self.inner.device
    }

    unsafe fn register(&self, memory: Memory<'_>, access: Access) -> Result<Region> {
        // SAFETY: as the caller promises.
        unsafe { self.inner.register(memory, access) }
    }

    fn copies_at_fork(&self) -> bool {
        self.inner.libraries.copies_at_fork
    }

    fn window(&self) -> Result<Window> {
        let cannot =
            || Why::Unsupported.error("cannot make a memory window").with("device", &self.inner.device.name);
        if self.inner.device.windows == Some(false) {
            return Err(cannot());
        }
        // SAFETY: the context is open as long as the domain.
        let raw = unsafe {
            let alloc = (*self.inner.context()).alloc_mw.ok_or_else(cannot)?;
            made(alloc(self.inner.pd.as_ptr(), sys::MW_TYPE_2), "cannot make a memory window")?
        };
        // SAFETY: the window was just made.
        let key = unsafe { raw.as_ref().rkey };
        Ok(Window::new(key, Box::new(Mw { raw: Some(raw), domain: Arc::clone(&self.inner) })))
    }

    fn connect(&self, to: SocketAddr, options: &Options) -> Result<Box<dyn Connection>> {
        options.check_private_data(56)?;
        let id = Id::new(self.inner.libraries)?;
        id.resolve(self.from, to, (options.timeout, options.stop))?;
        if id.context() != self.inner.context() {
            return Err(Why::NoRoute
                .error("cannot connect: another device than the domain's is on the route")
                .with("device", &self.inner.device.name)
                .with("address", to));
        }
        let mut connection = VerbsConnection::new(&self.inner, options, to, |attributes| {
            QueuePair::managed(&self.inner, id, attributes)
        })?;
        connection.connect(options).map_err(|error| error.with("address", to))?;
        Ok(Box::new(connection))
    }

    fn end(&self, options: &Options) -> Result<Box<dyn UnpairedEnd>> {
        Ok(Box::new(VerbsUnpaired::new(&self.inner, options)?))
    }
}

/// What a device is without being opened.
///
/// # Safety
/// The device is of a list that is not freed, or open.
pub(super) unsafe fn describe(libraries: &Libraries, device: *mut sys::IbvDevice) -> Device {
    // SAFETY: as the caller promises; the name is the device's own text.
    unsafe {
        let name = libraries.ibv.ibv_get_device_name(device);
        let name =
            if name.is_null() { String::new() } else { CStr::from_ptr(name).to_string_lossy().into_owned() };
        let transport = match (*device).transport {
            0 => Transport::Infiniband,
            1 => Transport::Iwarp,
            _ => Transport::Other,
        };
        let path = std::fs::canonicalize(format!("/sys/class/infiniband/{name}/device")).ok();
        let path = path.and_then(|path| path.into_os_string().into_string().ok());
        Device { name, transport, windows: None, reads: None, limits: None, path }
    }
}
