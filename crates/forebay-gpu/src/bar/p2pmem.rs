//! Peer-to-peer memory as the kernel publishes it: `/sys/bus/pci/devices/*/p2pmem/`.
//!
//! A mapping of the file `allocate` takes memory (`MAP_SHARED`, at offset 0); unmapping gives it back. Root owns the file.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use forebay_error::{Error, ErrorKind, Result};

use super::{Mapping, Provider};

/// Where the kernel lists PCI devices.
pub(super) const BUS: &str = "/sys/bus/pci/devices";
/// What names begin with.
pub(super) const PREFIX: &str = "p2pmem:";

/// The memory that one PCI device publishes.
#[derive(Debug)]
pub struct P2pMem {
    name: String,
    folder: PathBuf,
}

impl P2pMem {
    /// Of the device with this PCI address, listed in the folder `bus`.
    pub fn new(bus: &Path, pci: &str) -> Self {
        Self { name: format!("{PREFIX}{pci}"), folder: bus.join(pci).join("p2pmem") }
    }

    fn number(&self, file: &str) -> Result<u64> {
        let path = self.folder.join(file);
        let text = fs::read_to_string(&path)
            .map_err(|error| Error::from_io(&error, "cannot read").with("path", path.display()))?;
        text.trim().parse().map_err(|_| {
            Error::new(ErrorKind::Internal, format!("the kernel shows no number: {:?}", text.trim()))
                .with("path", path.display())
        })
    }
}

impl Provider for P2pMem {
    fn name(&self) -> &str {
        &self.name
    }

    fn pci(&self) -> &str {
        self.name.trim_start_matches(PREFIX)
    }

    fn memory(&self) -> Result<(u64, u64)> {
        Ok((self.number("available")?, self.number("size")?))
    }

    fn map(&self, len: usize) -> Result<Mapping> {
        let path = self.folder.join("allocate");
        let file = File::options().read(true).write(true).open(&path).map_err(|error| {
            let told = Error::from_io(&error, "cannot open the device's memory").with("path", path.display());
            match told.kind() {
                ErrorKind::PermissionDenied => told.hint(format!("sudo chmod 666 {}", path.display())),
                _ => told,
            }
        })?;
        Mapping::of(&file, len).map_err(|error| self.explain(error, len))
    }
}

impl P2pMem {
    fn explain(&self, error: Error, len: usize) -> Error {
        let told = match (error.errno(), self.memory()) {
            (libc::ENOMEM, Ok((free, _))) => Error::new(
                ErrorKind::DeviceOutOfMemory,
                "the device has not so much memory left in one piece",
            )
            .with("bytes", len)
            .with("free", free)
            .hint("use smaller or fewer buffers; memory is given back when its processes end"),
            _ => error,
        };
        told.with("device", &self.name)
    }
}

/// All devices that publish memory, in the order of their addresses. One whose memory its driver has kept or taken whole
/// (as NVIDIA's does for GPUs) is none of them.
pub(super) fn discover(bus: &Path) -> Vec<P2pMem> {
    let Ok(entries) = fs::read_dir(bus) else { return Vec::new() };
    let addresses = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut found: Vec<_> = addresses.filter(|pci| bus.join(pci).join("p2pmem/allocate").exists()).collect();
    found.sort();
    let offers = |provider: &P2pMem| {
        provider.number("published").is_ok_and(|published| published == 1)
            && provider.number("size").is_ok_and(|size| size > 0)
    };
    found.iter().map(|pci| P2pMem::new(bus, pci)).filter(offers).collect()
}

/// Why the device with this address offers no memory.
pub(super) fn missing(bus: &Path, pci: &str) -> Error {
    let folder = bus.join(pci);
    let is_published = || P2pMem::new(bus, pci).number("published").is_ok_and(|published| published == 1);
    let (kind, text, hint) = if pci.is_empty() || pci.contains('/') || !folder.exists() {
        (ErrorKind::NotFound, "there is no such PCI device", "lspci -D lists the addresses".to_owned())
    } else if !folder.join("p2pmem").exists() {
        let hint = "its driver must publish peer-to-peer memory (an NVMe drive with a memory buffer, for example), \
                    and the kernel needs CONFIG_PCI_P2PDMA=y";
        (ErrorKind::Unsupported, "the PCI device publishes no peer-to-peer memory", hint.to_owned())
    } else if !folder.join("p2pmem/allocate").exists() {
        let hint = "use kernel 6.2 or later: it lets processes map peer-to-peer memory".to_owned();
        (ErrorKind::Unsupported, "the kernel does not let processes map the device's memory", hint)
    } else if !is_published() {
        let hint = format!("ls {}", bus.display());
        (ErrorKind::Unsupported, "the device's driver keeps its peer-to-peer memory for itself", hint)
    } else {
        let hint = "open a new session: devices are looked for when it is opened".to_owned();
        (ErrorKind::NotFound, "the device came after this session was opened", hint)
    };
    Error::new(kind, text).with("device", format!("{PREFIX}{pci}")).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publish(bus: &Path, pci: &str, files: &[(&str, &str)]) {
        let folder = bus.join(pci).join("p2pmem");
        fs::create_dir_all(&folder).unwrap();
        for (name, text) in files {
            fs::write(folder.join(name), text).unwrap();
        }
    }

    fn bus() -> tempfile::TempDir {
        let bus = tempfile::tempdir().unwrap();
        let all = |published| {
            [("size", "8192\n"), ("available", "4096\n"), ("published", published), ("allocate", "")]
        };
        publish(bus.path(), "0000:03:00.0", &all("1\n"));
        publish(bus.path(), "0000:02:00.0", &all("1\n"));
        publish(bus.path(), "0000:04:00.0", &all("0\n"));
        publish(bus.path(), "0000:05:00.0", &[("size", "8192\n")]);
        fs::create_dir(bus.path().join("0000:06:00.0")).unwrap();
        bus
    }

    #[test]
    fn devices_that_publish_memory_are_found() {
        let bus = bus();
        let found = discover(bus.path());
        let names: Vec<_> = found.iter().map(Provider::name).collect();
        assert_eq!(names, ["p2pmem:0000:02:00.0", "p2pmem:0000:03:00.0"]);
        assert_eq!(found[0].pci(), "0000:02:00.0");
        assert_eq!(found[0].memory().unwrap(), (4096, 8192));
        assert!(discover(&bus.path().join("nothing")).is_empty());
    }

    #[test]
    fn others_are_told_why_not() {
        let bus = bus();
        let texts = ["0000:04:00.0", "0000:05:00.0", "0000:06:00.0", "0000:07:00.0", "../0000:03:00.0"]
            .map(|pci| missing(bus.path(), pci).message().to_owned());
        assert!(texts[0].contains("keeps"), "{texts:?}");
        assert!(texts[1].contains("does not let processes"), "{texts:?}");
        assert!(texts[2].contains("publishes no"), "{texts:?}");
        assert!(texts[3].contains("no such") && texts[4].contains("no such"), "{texts:?}");
    }
}
