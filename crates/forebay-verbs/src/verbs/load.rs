//! libibverbs and librdmacm, loaded when first needed and never unloaded; and why they are of no use.

use std::ffi::c_int;
use std::fs;
use std::io::ErrorKind as Io;
use std::path::Path;
use std::sync::OnceLock;

use forebay_error::{Error, Result};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::sys::{Cm, FORK_UNNEEDED, Ibv, IsForkInitialized, RegDmabufMr};
use crate::Why;

const NAMES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];
const INSTALL: &str = "apt-get install libibverbs1 librdmacm1 ibverbs-providers (Debian), dnf install libibverbs librdmacm (RHEL)";

static LIBRARIES: OnceLock<Result<Libraries>> = OnceLock::new();

/// Both libraries.
pub(super) struct Libraries {
    pub(super) ibv: Ibv,
    pub(super) cm: Cm,
    pub(super) reg_dmabuf_mr: Option<RegDmabufMr>,
    /// Whether a fork leaves this process the pages that it has registered.
    pub(super) copies_at_fork: bool,
    /// The process that loaded them: what it made, a child that it forked must not destroy.
    process: u32,
    _loaded: [Library; 2],
}

impl Libraries {
    /// The libraries of this machine.
    pub(super) fn get() -> Result<&'static Self> {
        let loaded = LIBRARIES.get_or_init(|| Self::load(NAMES)).as_ref().map_err(Clone::clone)?;
        if loaded.is_own_process() {
            return Ok(loaded);
        }
        Err(Why::Unsupported.error("cannot use RDMA in a forked process").hint("use spawn in place of fork"))
    }

    fn load(names: [&str; 2]) -> Result<Self> {
        let [ibv, cm] = names.map(open);
        let (verbs, manager) = (ibv?, cm?);
        let old = |library, symbol| {
            Why::OldLibrary
                .error("cannot use the RDMA library: a function is missing")
                .with("library", library)
                .with("function", symbol)
                .hint(INSTALL)
        };
        // SAFETY: the libraries of these names have these functions; they stay loaded with the tables.
        unsafe {
            let ibv = Ibv::load(&verbs).map_err(|symbol| old(names[0], symbol))?;
            let cm = Cm::load(&manager).map_err(|symbol| old(names[1], symbol))?;
            let reg_dmabuf_mr = verbs.get::<RegDmabufMr>("ibv_reg_dmabuf_mr").ok().map(|symbol| *symbol);
            let status = verbs.get::<IsForkInitialized>("ibv_is_fork_initialized").ok();
            let copies_at_fork = prepare_for_forks(status.map(|ask| ask()), || ibv.ibv_fork_init())?;
            let process = std::process::id();
            Ok(Self { ibv, cm, reg_dmabuf_mr, copies_at_fork, process, _loaded: [verbs, manager] })
        }
    }

    /// Whether this process made what it is about to destroy.
    pub(super) fn is_own_process(&self) -> bool {
        self.process == std::process::id()
    }
}

/// Whether the kernel gives a forked child copies of registered pages. Where it does not, or an older library does not say (no `status`),
/// the library shall keep its own memory, and registered memory, from children: possible only before its first use.
fn prepare_for_forks(status: Option<c_int>, begin: impl FnOnce() -> c_int) -> Result<bool> {
    if status == Some(FORK_UNNEEDED) {
        return Ok(true);
    }
    match begin() {
        0 => Ok(false),
        errno => Err(Why::Fork
            .mark(Error::from_errno(errno, "cannot use RDMA: a fork would take registered memory away"))
            .hint("Linux 5.12 or later with libibverbs 35 or later; before that: export RDMAV_FORK_SAFE=1")),
    }
}

fn open(name: &str) -> Result<Library> {
    // SAFETY: loading runs the constructors of a library of the system's, which is trusted with that.
    unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
        // libloading's own words are only "dlopen failed"; the reason stands in its source.
        let reason = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        Why::NoLibrary
            .error(format!("cannot load the RDMA library: {reason}"))
            .with("library", name)
            .hint(INSTALL)
    })
}

/// The error of a call that found no device, or could not open it: with the reason that the machine shows.
pub(super) fn no_device(errno: i32, doing: &str) -> Error {
    explain(errno, doing, Path::new("/dev/infiniband"), Path::new("/sys/class/infiniband"))
}

fn explain(errno: i32, doing: &str, nodes: &Path, devices: &Path) -> Error {
    let error = Error::from_errno(errno, doing);
    let names =
        |folder: &Path| fs::read_dir(folder).map(|list| list.flatten().map(|entry| entry.path()).collect());
    let devices: Vec<_> = names(devices).unwrap_or_default();
    if devices.is_empty() {
        return Why::NoDevice
            .mark(error)
            .hint("rdma link show; a soft device: rdma link add rxe0 type rxe netdev eth0 (as root)");
    }
    let nodes: Vec<_> = match names(nodes) {
        Err(reason) if reason.kind() == Io::PermissionDenied => return permission(error, nodes),
        list => list.unwrap_or_default(),
    };
    let used = |path: &&std::path::PathBuf| {
        path.file_name().is_some_and(|name| {
            let name = name.to_string_lossy();
            name == "rdma_cm" || name.starts_with("uverbs")
        })
    };
    let nodes: Vec<_> = nodes.iter().filter(used).collect();
    if !nodes.iter().any(|path| path.ends_with("rdma_cm")) || nodes.len() < 2 {
        return Why::NoDevice
            .mark(error)
            .with("missing", "/dev/infiniband/rdma_cm or uverbs")
            .hint("modprobe -a rdma_ucm ib_uverbs (as root)")
            .hint("in a container: --device /dev/infiniband --cap-add IPC_LOCK");
    }
    let closed = |path: &&std::path::PathBuf| {
        let opened = fs::OpenOptions::new().read(true).write(true).open(path);
        opened.is_err_and(|reason| reason.kind() == Io::PermissionDenied)
    };
    if let Some(node) = nodes.into_iter().find(closed) {
        return permission(error, node);
    }
    Why::NoRoute.mark(error).hint("ip route get ADDRESS; rdma link show")
}

fn permission(error: Error, node: &Path) -> Error {
    Why::Permission
        .mark(error)
        .with("node", node.display())
        .hint("chmod 666 /dev/infiniband/rdma_cm /dev/infiniband/uverbs* (as root; rdma-core's udev rules do it)")
        .hint("in a container: --device /dev/infiniband --cap-add IPC_LOCK")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let error = Libraries::load(["libforebay-no-such.so.1", NAMES[1]]).err().unwrap();
        assert_eq!(Why::of(&error), Some(Why::NoLibrary));
        assert_eq!(error.context(), [("library", "libforebay-no-such.so.1".to_owned())]);
        assert!(
            error
                .to_string()
                .starts_with("cannot load the RDMA library: libforebay-no-such.so.1: cannot open")
        );
        assert_eq!(error.hints(), [INSTALL]);
    }

    #[test]
    fn a_function_that_is_not_there_is_named() {
        let error = Libraries::load(["libc.so.6", "libc.so.6"]).err().unwrap();
        assert_eq!(Why::of(&error), Some(Why::OldLibrary));
        assert!(error.to_string().ends_with("(library=libc.so.6, function=ibv_get_device_list)"), "{error}");
    }

    #[test]
    fn a_fork_needs_no_preparation_where_the_kernel_copies() {
        let never = || panic!("not needed");
        assert!(prepare_for_forks(Some(FORK_UNNEEDED), never).unwrap());
        for status in [None, Some(0), Some(1)] {
            assert!(!prepare_for_forks(status, || 0).unwrap(), "{status:?}");
            // Another library of the process was there first.
            let error = prepare_for_forks(status, || libc::EINVAL).unwrap_err();
            assert_eq!(Why::of(&error), Some(Why::Fork), "{status:?}");
            assert!(error.hints()[0].ends_with("export RDMAV_FORK_SAFE=1"), "{error:?}");
        }
    }

    /// A machine's files, and the expected text.
    #[test]
    fn the_machine_shows_why_there_is_no_device() {
        let folder = std::env::temp_dir().join(format!("forebay-verbs-{}", std::process::id()));
        let (nodes, devices) = (folder.join("dev"), folder.join("sys"));
        let said = || explain(libc::ENODEV, "cannot open an RDMA device", &nodes, &devices);
        assert_eq!(Why::of(&said()), Some(Why::NoDevice));
        fs::create_dir_all(devices.join("mlx5_0")).unwrap();
        fs::create_dir_all(&nodes).unwrap();
        let error = said();
        assert_eq!(Why::of(&error), Some(Why::NoDevice));
        assert_eq!(error.hints()[0], "modprobe -a rdma_ucm ib_uverbs (as root)");
        for name in ["rdma_cm", "uverbs0", "issm0"] {
            fs::write(nodes.join(name), "").unwrap();
        }
        assert_eq!(Why::of(&said()), Some(Why::NoRoute));
        fs::remove_dir_all(folder).unwrap();
    }
}
