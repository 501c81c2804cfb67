//! Memory in a "PCI BAR" for tests: of a memory file, which O_DIRECT takes as it would take the real one; and calls
//! that fail on it as they do on the real one.
//!
//! `FOREBAY_TEST_BAR=p2pmem:PCI-ADDRESS` names a real device to use instead, for tests in a machine that has one.

use std::fs::File;
use std::os::fd::{FromRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_engine::Direction;
use forebay_engine::source::{Calls, HostRange, Kernel};
use forebay_error::{Error, Result};
use forebay_gpu::bar::{Mapping, Provider};
use forebay_gpu::{Device, Devices, bar};

const TOTAL: u64 = 64 << 20;
/// The memory file of fakes, as /proc names it.
const MEMFD: &std::ffi::CStr = c"fake-bar";

#[derive(Debug)]
struct Fake {
    name: String,
    /// Allocations so far.
    maps: Arc<AtomicU64>,
}

impl Provider for Fake {
    fn name(&self) -> &str {
        &self.name
    }

    fn pci(&self) -> &str {
        self.name.trim_start_matches("p2pmem:")
    }

    fn memory(&self) -> Result<(u64, u64)> {
        Ok((TOTAL, TOTAL))
    }

    fn map(&self, len: usize) -> Result<Mapping> {
        self.maps.fetch_add(1, Ordering::Relaxed);
        // SAFETY: a C string; the descriptor is new and ours.
        let file = unsafe {
            let fd = libc::memfd_create(MEMFD.as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0, "{}", Error::last_os("memfd_create"));
            File::from_raw_fd(fd)
        };
        file.set_len(len as u64).unwrap();
        Mapping::of(&file, len)
    }
}

/// A device with memory of its own, of another name each time: nothing is known of it.
pub fn fake(index: usize) -> Arc<dyn Device> {
    counted(index).0
}

/// The same, and how often its memory was allocated.
pub fn counted(index: usize) -> (Arc<dyn Device>, Arc<AtomicU64>) {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let (name, maps) = (format!("p2pmem:fake:{}.{number}", std::process::id()), Arc::<AtomicU64>::default());
    (bar::device(Fake { name, maps: maps.clone() }, index), maps)
}

/// The machine's devices, with a BAR among them: the one that the environment names, or a fake.
pub fn devices() -> Devices {
    let mut devices = Devices::discover();
    devices.bars = match std::env::var("FOREBAY_TEST_BAR") {
        Ok(name) => {
            let real = devices.named(&name.parse().unwrap()).unwrap();
            assert_eq!(real.info().index, devices.gpus.len(), "name the first device");
            vec![real]
        }
        Err(_) => vec![fake(devices.gpus.len())],
    };
    devices
}

/// Whether the device is a real one: its memory has room for less, and no calls are faked.
pub fn is_real() -> bool {
    std::env::var_os("FOREBAY_TEST_BAR").is_some()
}

/// Whether an address lies in a fake's memory, by what the kernel says is mapped there.
fn is_in_a_bar(address: u64) -> bool {
    let name = MEMFD.to_str().unwrap();
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().any(|line| {
        let (range, _) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        line.contains(name) && (number(start)..number(end)).contains(&address)
    })
}

/// What goes wrong with calls on a BAR's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    Errno(i32),
    /// At most this number of bytes is moved.
    Short(usize),
    /// The call succeeds, and the bytes go elsewhere or come from elsewhere.
    Astray,
}

/// The kernel, where `wrong` happens to calls in a direction that touch a BAR's memory.
#[derive(Debug)]
pub struct Misled {
    direction: Direction,
    wrong: Wrong,
    /// Calls that go well before.
    well: AtomicU64,
}

impl Misled {
    pub fn new(direction: Direction, wrong: Wrong) -> Self {
        Self::after(0, direction, wrong)
    }

    pub fn after(well: u64, direction: Direction, wrong: Wrong) -> Self {
        Self { direction, wrong, well: AtomicU64::new(well) }
    }

    fn strikes(&self, direction: Direction) -> bool {
        let spare = |well: u64| well.checked_sub(1);
        direction == self.direction
            && self.well.try_update(Ordering::Relaxed, Ordering::Relaxed, spare).is_err()
    }

    fn hits(&self, direction: Direction, memory: HostRange) -> bool {
        is_in_a_bar(memory.address()) && self.strikes(direction)
    }
}

impl Calls for Misled {
    unsafe fn read(&self, fd: RawFd, memory: HostRange, offset: u64, nowait: bool) -> isize {
        if !self.hits(Direction::Read, memory) {
            // SAFETY: passed on.
            return unsafe { Kernel.read(fd, memory, offset, nowait) };
        }
        match self.wrong {
            Wrong::Errno(errno) => -(errno as isize),
            // SAFETY: passed on, and no more than was promised.
            Wrong::Short(most) => unsafe { Kernel.read(fd, memory.first(most), offset, nowait) },
            Wrong::Astray => memory.len as isize,
        }
    }

    unsafe fn write(&self, fd: RawFd, memory: HostRange, offset: u64) -> isize {
        if !self.hits(Direction::Write, memory) {
            // SAFETY: passed on.
            return unsafe { Kernel.write(fd, memory, offset) };
        }
        match self.wrong {
            Wrong::Errno(errno) => -(errno as isize),
            // SAFETY: passed on, and no more than was promised.
            Wrong::Short(most) => unsafe { Kernel.write(fd, memory.first(most), offset) },
            Wrong::Astray => {
                let layout = std::alloc::Layout::from_size_align(memory.len, 4096).unwrap();
                // SAFETY: the layout is not empty; the memory is freed once, after its last use.
                unsafe {
                    let other = std::alloc::alloc_zeroed(layout);
                    other.write_bytes(0x5A, memory.len);
                    let put = Kernel.write(fd, HostRange { start: other, ..memory }, offset);
                    std::alloc::dealloc(other, layout);
                    put
                }
            }
        }
    }

    fn completed(&self, direction: Direction, memory: HostRange, _offset: u64, result: i32) -> i32 {
        if !self.hits(direction, memory) {
            return result;
        }
        match self.wrong {
            Wrong::Errno(errno) => -errno,
            Wrong::Short(most) => result.min(most as i32),
            Wrong::Astray => result,
        }
    }
}
