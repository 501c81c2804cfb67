//! Ways by which a GPU's memory could be given to a drive, and what each needs: checked, so that a refusal names what is
//! missing. None of them is written: nothing that we reach could run it.

use std::fmt;
use std::fs;

/// A way from a GPU's memory to the kernel's file calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// NVIDIA's driver maps the memory into the process by pages that O_DIRECT takes.
    DriverMapping,
    /// The memory as a dma-buf, registered as a buffer of an `io_uring`: for NVMe block devices.
    RingDmaBuf,
}

/// What stands in the way. The order is the order in which they are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The kernel is too old.
    Kernel {
        /// What it is.
        release: String,
        /// The first that has it.
        needed: (u32, u32),
    },
    /// The kernel was built without peer-to-peer DMA, as its configuration says.
    NoP2pDma,
    /// No NVIDIA kernel module is loaded.
    NoDriver,
    /// The kernel module is the proprietary one.
    ClosedDriver {
        /// Its version.
        version: String,
    },
    /// The kernel module is too old, for all kernels or for this one.
    Driver {
        /// Its version.
        version: String,
        /// The first that works.
        needed: (u32, u32),
    },
    /// The driver publishes no peer-to-peer memory for the GPU.
    NotPublished {
        /// The GPU's PCI address.
        pci: String,
    },
    /// All that could be checked holds, but forebay has no code for it.
    NotWritten,
}

/// Kernels that let O_DIRECT take peer-to-peer memory of a process.
const USER_P2P: (u32, u32) = (6, 2);
/// Kernels that register dma-bufs with an `io_uring`.
const RING_DMA_BUF: (u32, u32) = (7, 4);
/// Drivers that offer their memory's pages.
const OFFERS: (u32, u32) = (565, 57);
/// From this kernel on pages are counted in another way,
const COUNTED: (u32, u32) = (6, 15);
/// which drivers know from here on.
const COUNTS: (u32, u32) = (595, 44);

impl Way {
    /// All ways.
    pub const ALL: [Self; 2] = [Self::DriverMapping, Self::RingDmaBuf];

    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DriverMapping => "mapping by NVIDIA's driver",
            Self::RingDmaBuf => "io_uring dma-buf",
        }
    }

    /// What it is good for once it is there.
    pub const fn reaches(self) -> &'static str {
        match self {
            Self::DriverMapping => "files and block devices",
            Self::RingDmaBuf => "NVMe block devices only, no files",
        }
    }

    /// The first thing that keeps the GPU at a PCI address from being reached this way.
    pub fn obstacle(self, pci: &str) -> Obstacle {
        self.obstacle_by(&|path| fs::read_to_string(path).ok(), pci)
    }

    /// As [`Way::obstacle`], for a machine whose files (in `/proc`, `/sys` and `/boot`) `text` reads.
    pub fn obstacle_by(self, text: &dyn Fn(&str) -> Option<String>, pci: &str) -> Obstacle {
        let machine = Machine { text };
        let found = match self {
            Self::DriverMapping => machine.kernel(USER_P2P).or_else(|| machine.driver_mapping(pci)),
            Self::RingDmaBuf => machine.kernel(RING_DMA_BUF).or_else(|| machine.driver_exports()),
        };
        found.unwrap_or(Obstacle::NotWritten)
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel { release, .. } => write!(f, "kernel {release} is too old"),
            Self::NoP2pDma => f.write_str("the kernel is built without CONFIG_PCI_P2PDMA"),
            Self::NoDriver => f.write_str("no NVIDIA kernel module is loaded"),
            Self::ClosedDriver { version } => write!(f, "driver {version} is the proprietary kernel module"),
            Self::Driver { version, .. } => {
                write!(f, "driver {version} does not offer the GPU's pages with this kernel")
            }
            Self::NotPublished { pci } => {
                write!(f, "the driver publishes no peer-to-peer memory of the GPU ({pci})")
            }
            Self::NotWritten => f.write_str("this version of forebay has no code for it"),
        }
    }
}

impl Obstacle {
    /// What to type or change, if anything helps.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Kernel { needed: (major, minor), .. } => format!("use kernel {major}.{minor} or later"),
            Self::NoP2pDma => "use a kernel with CONFIG_PCI_P2PDMA=y".to_owned(),
            Self::NoDriver => return None,
            Self::ClosedDriver { .. } => "install the open kernel module: apt install nvidia-open".to_owned(),
            Self::Driver { needed: (major, minor), .. } => {
                format!("install driver {major}.{minor:02} or later")
            }
            Self::NotPublished { .. } => {
                "forebay check names the driver's option that this GPU needs".to_owned()
            }
            Self::NotWritten => "--engine vendor uses NVIDIA's own library".to_owned(),
        })
    }
}

/// A machine as its files show it.
struct Machine<'a> {
    text: &'a dyn Fn(&str) -> Option<String>,
}

impl Machine<'_> {
    fn text(&self, path: &str) -> Option<String> {
        Some((self.text)(path)?.trim().to_owned())
    }

    fn release(&self) -> String {
        self.text("/proc/sys/kernel/osrelease").unwrap_or_default()
    }

    fn kernel(&self, needed: (u32, u32)) -> Option<Obstacle> {
        let release = self.release();
        // A release that cannot be read is no obstacle that we know of.
        let is_old = numbers(&release).is_some_and(|version| version < needed);
        is_old.then_some(Obstacle::Kernel { release, needed })
    }

    /// The version of the open kernel module, or what is there instead of it.
    fn open_driver(&self) -> Result<String, Obstacle> {
        let told = self.text("/proc/driver/nvidia/version").ok_or(Obstacle::NoDriver)?;
        let version = told.split_whitespace().find(|word| numbers(word).is_some()).unwrap_or("?").to_owned();
        if told.contains("Open Kernel Module") {
            Ok(version)
        } else {
            Err(Obstacle::ClosedDriver { version })
        }
    }

    /// Only the open kernel module exports dma-bufs.
    fn driver_exports(&self) -> Option<Obstacle> {
        self.open_driver().err()
    }

    fn driver_mapping(&self, pci: &str) -> Option<Obstacle> {
        let version = match self.open_driver() {
            Ok(version) => version,
            Err(obstacle) => return Some(obstacle),
        };
        let counted = numbers(&self.release()).is_some_and(|kernel| kernel >= COUNTED);
        let needed = if counted { COUNTS } else { OFFERS };
        if numbers(&version).is_some_and(|driver| driver < needed) {
            return Some(Obstacle::Driver { version, needed });
        }
        let size = self.text(&format!("/sys/bus/pci/devices/{pci}/p2pmem/size"));
        let is_published = size.and_then(|text| text.parse::<u64>().ok()).is_some_and(|size| size > 0);
        if is_published {
            return None;
        }
        let config = self.text(&format!("/boot/config-{}", self.release()));
        let lacks_it = |text: String| !text.lines().any(|line| line == "CONFIG_PCI_P2PDMA=y");
        Some(if config.is_some_and(lacks_it) {
            Obstacle::NoP2pDma
        } else {
            Obstacle::NotPublished { pci: pci.to_owned() }
        })
    }
}

/// The first two numbers of a version.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let (major, rest) = version.split_once('.')?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((major.parse().ok()?, digits.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PCI: &str = "0000:1b:00.0";
    const OPEN: &str = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.71.05  Release Build";
    const OLD: &str = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build";
    const CLOSED: &str = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  595.71.05  Tue";

    const RELEASE: &str = "/proc/sys/kernel/osrelease";
    const DRIVER: &str = "/proc/driver/nvidia/version";

    /// What is in the way on a machine with these files.
    fn found(way: Way, files: &[(&str, &str)]) -> Obstacle {
        let text =
            |path: &str| files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned());
        way.obstacle_by(&text, PCI)
    }

    #[test]
    fn each_precondition_is_told_from_the_others() {
        let found = |files: &[(&str, &str)]| found(Way::DriverMapping, files);
        assert!(matches!(found(&[(RELEASE, "6.1.0-40-amd64\n")]), Obstacle::Kernel { needed: (6, 2), .. }));
        let config = ("/boot/config-6.12.9", "# CONFIG_PCI_P2PDMA is not set\n");
        assert_eq!(found(&[(RELEASE, "6.12.9"), (DRIVER, OLD), config]), Obstacle::NoP2pDma);
        assert_eq!(found(&[(RELEASE, "6.12.9")]), Obstacle::NoDriver);
        assert!(matches!(found(&[(RELEASE, "6.12.9"), (DRIVER, CLOSED)]), Obstacle::ClosedDriver { .. }));
        let old = Obstacle::Driver { version: "580.159.04".to_owned(), needed: (595, 44) };
        assert_eq!(found(&[(RELEASE, "6.18.44-fc"), (DRIVER, OLD)]), old);
        let unpublished = Obstacle::NotPublished { pci: PCI.to_owned() };
        assert_eq!(found(&[(RELEASE, "6.12.9"), (DRIVER, OLD)]), unpublished);
        let size = ("/sys/bus/pci/devices/0000:1b:00.0/p2pmem/size", "274877906944\n");
        assert_eq!(found(&[(RELEASE, "6.18.44"), (DRIVER, OPEN), size]), Obstacle::NotWritten);
    }

    #[test]
    fn dma_bufs_need_a_new_kernel_and_a_driver_that_exports_them() {
        let found = |files: &[(&str, &str)]| found(Way::RingDmaBuf, files);
        let needed = Obstacle::Kernel { release: "7.3.1".to_owned(), needed: (7, 4) };
        assert_eq!(found(&[(RELEASE, "7.3.1\n"), (DRIVER, OPEN)]), needed);
        assert_eq!(found(&[(RELEASE, "7.4.0-rc1")]), Obstacle::NoDriver);
        let closed = Obstacle::ClosedDriver { version: "595.71.05".to_owned() };
        assert_eq!(found(&[(RELEASE, "7.4.0-rc1"), (DRIVER, CLOSED)]), closed);
        assert_eq!(found(&[(RELEASE, "7.4.0-rc1"), (DRIVER, OPEN)]), Obstacle::NotWritten);
    }
}
