//! Values that exist once in a process, even if it has the engine several times.
//!
//! `libcufile.so.0` and Python's extension module are shared objects that each have the engine linked in, and a process
//! may load both. Each then has its own copy of every static, but lanes, pinned memory and counters must be the
//! process's. So nothing of the kind is a static: all of it is in [`Process`] by name ([`PerProcess`]), and each object finds the same one.
//!
//! An object exports a [`Slot`] (by [`publish_session!`](crate::publish_session)). The first time that an object needs
//! the `Process`, it looks at all loaded objects in the order in which they were loaded, and takes the first slot with
//! its own build id. The first object makes the `Process` and stores its address there. All objects of one build find
//! the same slot: later objects come later in that order, and the object with the slot is kept from being unloaded.
//!
//! # Why this is sound
//! Objects exchange Rust values, which have no stable layout, and call each other's functions by vtables, which have
//! no stable ABI. But layout and ABI are functions of the compiler, the target, the flags and the sources, and the
//! build id is a hash of these: same id, same layout. What else must hold:
//! - **Code stays.** Values carry pointers to the code of the object that made them. Objects that take part are marked
//!   `RTLD_NODELETE` before they share anything.
//! - **One allocator.** Memory is freed by another object than the one that allocated it. All use the system's
//!   allocator: objects that publish a slot must not have a `#[global_allocator]`.
//! - **Locks** of `std` are words that the kernel compares by address: any copy of `std` can wait for any other.
//! - **Numbers of threads** differ between copies of `std`, so `std::sync::mpsc`, which compares them, is used only
//!   where both ends are of one object: made, sent to and received from within one function's code.
//! - **Panics** cannot be caught by another object's `std`: the process aborts. None is meant to leave the engine.
//! - **Devices** have statics of their own (`forebay-gpu`). A session has its devices from the object that opened it,
//!   whose code their vtables name.
//!
//! A forked child has no `Process` at first and makes its own; what belongs to the parent's knows it by
//! [`Birth`](crate::runtime::fork::Birth).
//!
//! Objects of different builds share nothing; [`Session::notes`] says so.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use crate::runtime::lock;

/// A value that a process has once, found by its name.
///
/// # Safety
/// No other type has the same [`PerProcess::NAME`]: a value is found by it alone. The type's crate is one of those that the
/// build id is made of (`build.rs`).
pub unsafe trait PerProcess: Default + Send + Sync + 'static {
    /// Unique, and the same in all objects of one build.
    const NAME: &'static str;

    /// The process's, made when first asked for. A forked child makes its own.
    fn of_process() -> &'static Self {
        process().find()
    }
}

/// Everything that a process has once, by name.
#[derive(Debug, Default)]
pub(crate) struct Process {
    /// Filled from the front, never emptied.
    entries: [ProcessEntry; MAX_ENTRIES],
    making: Mutex<()>,
}

/// Most values. A test fails when there are not enough.
const MAX_ENTRIES: usize = 16;

/// The place of one value: the hash of its name (0: free), and its address.
#[derive(Debug, Default)]
struct ProcessEntry {
    key: AtomicU64,
    value: AtomicPtr<c_void>,
}

impl Process {
    fn find<T: PerProcess>(&self) -> &T {
        let key = const { hash(T::NAME) };
        for entry in &self.entries {
            match entry.key.load(Ordering::Acquire) {
                // SAFETY: stored before the key, by `make` of a `T` of this build, and never freed.
                found if found == key => return unsafe { &*entry.value.load(Ordering::Relaxed).cast::<T>() },
                0 => break,
                _ => {}
            }
        }
        self.make::<T>(key)
    }

    #[cold]
    fn make<T: PerProcess>(&self, key: u64) -> &T {
        let making = lock(&self.making);
        let entry = self.entries.iter().find(|entry| [0, key].contains(&entry.key.load(Ordering::Acquire)));
        let Some(entry) = entry else {
            unreachable!("there are fewer kinds than entries: a test counts them")
        };
        if entry.key.load(Ordering::Acquire) == 0 {
            entry.value.store(Box::into_raw(Box::<T>::default()).cast(), Ordering::Relaxed);
            entry.key.store(key, Ordering::Release);
        }
        drop(making);
        // SAFETY: as in `find`.
        unsafe { &*entry.value.load(Ordering::Relaxed).cast::<T>() }
    }
}

/// FNV-1a; never 0.
const fn hash(name: &str) -> u64 {
    let (bytes, mut hash, mut index) = (name.as_bytes(), 0xCBF2_9CE4_8422_2325u64, 0);
    while index < bytes.len() {
        hash = (hash ^ bytes[index] as u64).wrapping_mul(0x100_0000_01B3);
        index += 1;
    }
    hash | 1
}

/// The slot that this object uses, once it has looked for it. No `OnceLock`: a fork may come in between.
static FOUND: AtomicPtr<Slot> = AtomicPtr::new(std::ptr::null_mut());

/// The process's, the same in all objects of this build.
#[inline]
pub(crate) fn process() -> &'static Process {
    let mut slot = FOUND.load(Ordering::Acquire).cast_const();
    if slot.is_null() {
        slot = look();
    }
    // SAFETY: a slot of this build in an object that is never unloaded.
    unsafe { &*slot }.process()
}

/// Looks for the slot, and keeps what it found.
#[cold]
fn look() -> *const Slot {
    // All who look at once find the same.
    let slot = find();
    FOUND.store(std::ptr::from_ref(slot).cast_mut(), Ordering::Release);
    slot
}

/// A forked child begins with nothing: the threads that serve what its parent had are not there, and its locks may be
/// locked for ever. What the parent had is never freed here.
extern "C" fn in_child() {
    let slot = FOUND.load(Ordering::Acquire);
    if !slot.is_null() {
        // SAFETY: as in `process`. A store to an atomic is allowed in the child of a threaded process.
        unsafe { &*slot }.process.store(std::ptr::null_mut(), Ordering::Release);
    }
}

/// Has [`in_child`] called in forked children. Where it cannot be installed, children go unnoticed.
fn watch_forks() {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if !WATCHED.load(Ordering::Acquire) {
        // SAFETY: the handler makes only async-signal-safe calls. Installing it twice does no harm.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        WATCHED.store(true, Ordering::Release);
    }
}

// ---- slots --------------------------------------------------------------------------------------------------------

const MAGIC: u64 = u64::from_le_bytes(*b"forebay\0");
const VERSION: u32 = 1;
const SYMBOL: &CStr = c"forebay_session_v1";
const BUILD: [u8; 32] = bytes(env!("FOREBAY_BUILD_ID"));

/// Where an object's slot is `None`: a program that publishes nothing.
static UNPUBLISHED: Slot = Slot::new();

/// A place for the address of what a process has once: see [`publish_session!`](crate::publish_session). Builds agree on
/// all but the last field.
#[derive(Debug)]
#[repr(C)]
pub struct Slot {
    magic: u64,
    version: u32,
    /// Of the whole slot.
    size: u32,
    build: [u8; 32],
    process: AtomicPtr<c_void>,
}

impl Slot {
    /// An empty one.
    #[allow(clippy::new_without_default, reason = "made by the macro only")]
    pub const fn new() -> Self {
        let size = size_of::<Self>() as u32;
        Self {
            magic: MAGIC,
            version: VERSION,
            size,
            build: BUILD,
            process: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    #[inline]
    fn process(&self) -> &'static Process {
        let mut address = self.process.load(Ordering::Acquire);
        if address.is_null() {
            address = self.make();
        }
        // SAFETY: a `Process` of this build, made by `make` here or in another object; it is never freed.
        unsafe { &*address.cast() }
    }

    #[cold]
    fn make(&self) -> *mut c_void {
        // Before anybody can have anything of it.
        watch_forks();
        let mine = Box::into_raw(Box::<Process>::default());
        let null = std::ptr::null_mut();
        match self.process.compare_exchange(null, mine.cast(), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => mine.cast(),
            Err(other) => {
                // SAFETY: made above, and nobody else has seen it.
                drop(unsafe { Box::from_raw(mine) });
                other
            }
        }
    }
}

/// Lets the shared object that calls this share one session with all others of the same build that do. To be called
/// once in the crate of a `cdylib`, at its root. The symbol `forebay_session_v1` must be exported.
#[macro_export]
macro_rules! publish_session {
    () => {
        /// Where this process's session is.
        #[allow(non_upper_case_globals, reason = "the name is found by other objects")]
        #[unsafe(no_mangle)]
        pub static forebay_session_v1: $crate::Slot = $crate::Slot::new();
    };
}

const fn bytes(digits: &str) -> [u8; 32] {
    const fn digit(ascii: u8) -> u8 {
        if ascii <= b'9' { ascii - b'0' } else { ascii - b'a' + 10 }
    }
    let digits = digits.as_bytes();
    let mut bytes = [0; 32];
    let mut index = 0;
    while index < bytes.len() {
        bytes[index] = digit(digits[2 * index]) << 4 | digit(digits[2 * index + 1]);
        index += 1;
    }
    bytes
}

// ---- loaded objects -----------------------------------------------------------------------------------------------

/// A loaded object: the program itself (without a name) or a shared one.
struct Object {
    name: CString,
    addresses: Range<usize>,
}

/// A reference to a loaded object, given back on drop.
struct Handle(*mut c_void);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made by `dlopen`, and not used any more.
        unsafe { libc::dlclose(self.0) };
    }
}

impl Object {
    /// All of them, in the order in which they were loaded.
    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        // SAFETY: the callback gets the vector, which lives through the call.
        unsafe { libc::dl_iterate_phdr(Some(collect), (&raw mut all).cast()) };
        all
    }

    fn open(&self, flags: c_int) -> Option<Handle> {
        let name = match self.name.to_bytes() {
            [] => std::ptr::null::<c_char>(),
            // The kernel's own (vDSO), which is no file.
            name if !name.contains(&b'/') => return None,
            _ => self.name.as_ptr(),
        };
        // SAFETY: null, or a string that lives through the call. Nothing is loaded, so no code of it runs.
        let handle = unsafe { libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD | flags) };
        (!handle.is_null()).then_some(Handle(handle))
    }

    /// The library's own slot. (`dlsym` looks into the objects that it depends on, too.) Valid as long as the handle.
    fn slot(&self, handle: &Handle) -> Option<&'static Slot> {
        // SAFETY: a live handle and a string.
        let slot = unsafe { libc::dlsym(handle.0, SYMBOL.as_ptr()) }.cast::<Slot>();
        let address = slot as usize;
        let is_own =
            self.addresses.contains(&address) && self.addresses.contains(&(address + size_of::<Slot>() - 1));
        if !is_own || !slot.is_aligned() {
            return None;
        }
        // SAFETY: aligned, and mapped with the object; any bytes are a slot. It only changes by atomics.
        let slot = unsafe { &*slot };
        (slot.magic == MAGIC && slot.version == VERSION && slot.size as usize == size_of::<Slot>())
            .then_some(slot)
    }

    fn build(&self) -> Option<[u8; 32]> {
        let handle = self.open(0)?;
        Some(self.slot(&handle)?.build)
    }

    /// Keeps it loaded for ever. The program itself is anyway.
    fn keep(&self) {
        drop(self.open(libc::RTLD_NODELETE));
    }

    /// Whether this code is part of it.
    fn is_here(&self) -> bool {
        self.addresses.contains(&(&raw const UNPUBLISHED as usize))
    }
}

unsafe extern "C" fn collect(info: *mut libc::dl_phdr_info, _size: usize, all: *mut c_void) -> c_int {
    // SAFETY: as `Object::all` passes it, and as the linker fills it in.
    let (all, info) = unsafe { (&mut *all.cast::<Vec<Object>>(), &*info) };
    let name = if info.dlpi_name.is_null() {
        CString::default()
    } else {
        // SAFETY: a string of the linker's, copied before the object can go.
        unsafe { CStr::from_ptr(info.dlpi_name) }.to_owned()
    };
    let (mut low, mut high) = (usize::MAX, 0);
    for index in 0..usize::from(info.dlpi_phnum) {
        // SAFETY: the linker says that there are `dlpi_phnum` headers.
        let header = unsafe { &*info.dlpi_phdr.add(index) };
        if header.p_type == libc::PT_LOAD {
            let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
            low = low.min(start);
            high = high.max(start.wrapping_add(header.p_memsz as usize));
        }
    }
    all.push(Object { name, addresses: low..high });
    0
}

/// The build id of this object: what its slot says, if it has one.
fn own_build(objects: &[Object]) -> [u8; 32] {
    objects.iter().find(|object| object.is_here()).and_then(Object::build).unwrap_or(BUILD)
}

/// The first slot of this build.
fn find() -> &'static Slot {
    let objects = Object::all();
    let build = own_build(&objects);
    let slot = objects.iter().find_map(|object| {
        let handle = object.open(0)?;
        let slot = object.slot(&handle).filter(|slot| slot.build == build)?;
        // Before the handle goes.
        object.keep();
        Some(slot)
    });
    objects.iter().filter(|object| object.is_here()).for_each(Object::keep);
    slot.unwrap_or(&UNPUBLISHED)
}

/// The names of loaded objects with another build of the engine.
pub(crate) fn other_builds() -> Vec<String> {
    let objects = Object::all();
    let build = own_build(&objects);
    let others = objects.iter().filter(|object| object.build().is_some_and(|other| other != build));
    others.map(|object| object.name.to_string_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_build_id_is_read() {
        assert_eq!(bytes(&"0a".repeat(32)), [10; 32]);
        assert_eq!(bytes(&"f9".repeat(32)), [0xF9; 32]);
        assert_ne!(BUILD, [0; 32]);
    }

    /// The crates of forebay's that a crate is built from, as its Cargo.toml says.
    fn dependencies(name: &str) -> Vec<String> {
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let manifest = std::fs::read_to_string(crates.join(name).join("Cargo.toml")).unwrap();
        let (_, behind) = manifest.split_once("\n[dependencies]\n").unwrap_or_default();
        let section = behind.split("\n[").next().unwrap_or_default();
        let names = section.lines().filter_map(|line| line.split(['.', ' ']).next());
        names.filter(|name| name.starts_with("forebay-")).map(str::to_owned).collect()
    }

    #[test]
    fn the_build_id_is_of_all_crates_whose_types_are_in_a_session() {
        let script = include_str!("../../build.rs");
        let list = script.split_once("const CRATES").unwrap().1.split_once("];").unwrap().0;
        let listed: Vec<_> = list.split('"').skip(1).step_by(2).collect();
        let built: Vec<_> = ["forebay-engine"].iter().chain(&listed).map(|name| dependencies(name)).collect();
        assert!(built[0].iter().any(|name| name == "forebay-source"), "{built:?}");
        for name in built.iter().flatten().filter(|name| *name != "forebay-engine") {
            assert!(listed.contains(&name.as_str()), "{name} is not in CRATES of build.rs");
        }
    }

    /// The lines of all crates that give a name to what a process has once.
    fn names() -> Vec<String> {
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut folders = vec![crates.to_owned()];
        let mut names = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let text = std::fs::read_to_string(&path).unwrap();
                    let kinds = text.split("\nunsafe impl PerProcess for ").skip(1);
                    names.extend(kinds.map(|kind| kind.split('"').nth(1).unwrap().to_owned()));
                }
            }
        }
        names
    }

    #[test]
    fn there_are_fewer_kinds_than_rooms_and_each_has_its_own_name() {
        let mut hashes: Vec<_> = names().iter().map(|name| hash(name)).collect();
        let count = hashes.len();
        assert!((5..MAX_ENTRIES).contains(&count), "{count}");
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), count);
    }

    #[test]
    fn a_slot_has_one_process() {
        let slot = Slot::new();
        let addresses: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..8).map(|_| scope.spawn(|| std::ptr::from_ref(slot.process()) as usize)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(addresses.iter().all(|address| *address == addresses[0]));
    }

    #[test]
    fn the_program_knows_itself() {
        let objects = Object::all();
        let here: Vec<_> = objects.iter().filter(|object| object.is_here()).collect();
        assert_eq!(here.len(), 1);
        assert!(here[0].build().is_none(), "a test publishes nothing");
        assert!(std::ptr::eq(find(), &raw const UNPUBLISHED));
        assert!(other_builds().is_empty());
    }
}
