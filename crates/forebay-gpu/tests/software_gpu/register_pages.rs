//! Registering a file's mapped pages, over the fake driver: refusals, the device's reads, and what it goes
//! on reading when the file changes below it.

use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use crate::common::{Mapped, Pinned, device, on_device, tidy};
use forebay_gpu::{
    Access, Context, CopyPiece, Device, DeviceRange, ErrorKind, HostRange, Result, Stream, Wait,
    fill_pattern, first_mismatch,
};

const LEN: usize = 1 << 20;
const PAGE: usize = 4096;

/// Registers a mapping for as long as it lives.
struct Registered<'a>(&'a dyn Device, *mut u8);

impl<'a> Registered<'a> {
    fn new(device: &'a dyn Device, mapped: &Mapped, access: Access) -> Self {
        register(device, mapped.address, mapped.len, access).unwrap();
        Self(device, mapped.address)
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        // SAFETY: registered above; tests wait for their work.
        unsafe { self.0.unregister(self.1) }.unwrap();
    }
}

fn register(device: &dyn Device, address: *mut u8, len: usize, access: Access) -> Result<()> {
    // SAFETY: tests keep what they register mapped, or want to see what happens.
    unsafe { device.register(HostRange::new(address, len), access) }
}

/// What the device reads from a mapping.
fn seen(device: &dyn Device, address: *const u8, len: usize) -> Vec<u8> {
    let (fake, stream) = (fake_cuda::install().unwrap(), device.stream(Context::PRIMARY).unwrap());
    let memory = device.allocate(len).unwrap();
    // SAFETY: the ranges live until the synchronisation.
    unsafe { stream.copy_in(memory, HostRange::new(address, len)) }.unwrap();
    stream.synchronize(Wait::Block).unwrap();
    let bytes = on_device(fake, memory, len);
    // SAFETY: unused by now.
    unsafe { device.free(memory) };
    bytes
}

fn pattern(key: u64, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill_pattern(&mut bytes, key, offset);
    bytes
}

#[test]
fn a_registered_file_is_copied_in_place() {
    let (fake, device) = device();
    let mapped = Mapped::on_disk(LEN, 3);
    device.can_register(Access::ReadOnly).unwrap();
    let registered = Registered::new(&*device, &mapped, Access::ReadOnly);
    assert_eq!((fake.registered_bytes(), fake.leaks().registrations), (LEN as u64, 1));
    assert!(seen(&*device, mapped.address, LEN) == pattern(3, 0, LEN));
    assert!(seen(&*device, mapped.address.wrapping_add(4099), 10_001) == pattern(3, 4099, 10_001));
    assert_eq!(fake.unpinned_copies(), 0);

    let (stream, memory) = (device.stream(Context::PRIMARY).unwrap(), device.allocate(LEN).unwrap());
    let list = Pinned::new(&device, 2 * size_of::<CopyPiece>());
    let base = mapped.address as u64;
    list.put(0, CopyPiece { src: base + 5, dst: memory, len: 5000 });
    list.put(1, CopyPiece { src: base + 8192, dst: memory + 5000, len: 1 });
    // SAFETY: all that is named lives until the synchronisation, which `check_pattern` is.
    unsafe {
        stream.scatter(list.device, 2, 5000).unwrap();
        assert_eq!(
            stream.check_pattern(DeviceRange::new(base + 4096, 9000), 3, 4096).unwrap().wrong_bytes,
            0
        );
    }
    assert_eq!(first_mismatch(&on_device(fake, memory, 5000), 3, 5), None);
    assert_eq!(on_device(fake, memory + 5000, 1), pattern(3, 8192, 1));
    assert!(on_device(fake, base, LEN) == pattern(3, 0, LEN), "tests see it too");
    // SAFETY: unused by now.
    unsafe { device.free(memory) };
    drop((registered, list, stream));
    assert_eq!(fake.registered_bytes(), 0);
    tidy(fake);
}

#[test]
fn writes_in_place_are_seen_and_lost_pages_stay_as_they_were() {
    let (fake, device) = device();
    let new = vec![0xA5; PAGE];
    let old = |page: usize| pattern(7, (page * PAGE) as u64, PAGE);
    let shows = |mapped: &Mapped, page: usize, wanted: &[u8]| {
        seen(&*device, mapped.address.wrapping_add(page * PAGE), PAGE) == wanted
    };

    let mapped = Mapped::on_disk(LEN, 7);
    let registered = Registered::new(&*device, &mapped, Access::ReadOnly);
    mapped.write(&new, 5 * PAGE as u64);
    assert!(shows(&mapped, 5, &new), "written in place");
    assert!(shows(&mapped, 6, &old(6)));

    mapped.file.set_len(10 * PAGE as u64).unwrap();
    assert!(shows(&mapped, 10, &old(10)), "cut off: stale, and no SIGBUS");
    mapped.file.set_len(LEN as u64).unwrap();
    mapped.write(&new, 10 * PAGE as u64);
    assert!(shows(&mapped, 10, &old(10)), "what grew back is another page");
    // SAFETY: the page is mapped and within the file.
    let byte = unsafe { mapped.address.wrapping_add(10 * PAGE).read_volatile() };
    assert!(byte == 0xA5 && shows(&mapped, 10, &old(10)), "even when the CPU has looked");
    drop((registered, mapped));

    let mapped = Mapped::on_disk(LEN, 7);
    let registered = Registered::new(&*device, &mapped, Access::ReadOnly);
    mapped.punch(20 * PAGE as i64, PAGE as i64);
    assert!(shows(&mapped, 20, &old(20)), "a hole");
    // As if unmapped, but so that nothing else comes to lie there.
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: replaces our own mapping, which no reference is held to.
    unsafe { libc::mmap(mapped.address.cast(), LEN, libc::PROT_NONE, flags, -1, 0) };
    assert!(shows(&mapped, 30, &old(30)), "unmapped");
    drop((registered, mapped));
    tidy(fake);
}

#[test]
fn a_direct_write_leaves_the_device_with_old_bytes() {
    let (fake, device) = device();
    let mapped = Mapped::on_disk(LEN, 9);
    let direct = std::fs::File::options().write(true).custom_flags(libc::O_DIRECT).open(&mapped.path);
    let Ok(direct) = direct else { return println!("skipped: the file system has no O_DIRECT") };
    let registered = Registered::new(&*device, &mapped, Access::ReadOnly);
    direct.write_all_at(device_page(0xD1), 0).unwrap();
    let first = seen(&*device, mapped.address, PAGE);
    // SAFETY: the mapping is alive and within the file.
    assert_eq!(unsafe { mapped.address.read_volatile() }, 0xD1, "the CPU reads the new page");
    assert!(first == pattern(9, 0, PAGE) && seen(&*device, mapped.address, PAGE) == first);
    drop((registered, mapped));
    tidy(fake);
}

/// A page-aligned page of one value, never freed.
fn device_page(value: u8) -> &'static [u8] {
    let pages = vec![value; 2 * PAGE].leak();
    let skip = pages.as_ptr().align_offset(PAGE);
    &pages[skip..skip + PAGE]
}

#[test]
fn memory_files_may_be_written_by_the_device() {
    let (fake, device) = device();
    let mapped = Mapped::in_memory(16 * PAGE, 4);
    let registered = Registered::new(&*device, &mapped, Access::ReadWrite);
    let (stream, memory) = (device.stream(Context::PRIMARY).unwrap(), device.allocate(PAGE).unwrap());
    // SAFETY: the ranges live until the synchronisation.
    let write = |at: usize| unsafe {
        stream.fill_pattern(DeviceRange::new(memory, PAGE), 77, 0).unwrap();
        stream.copy_out(HostRange::new(mapped.address.wrapping_add(at), PAGE), memory).unwrap();
        stream.synchronize(Wait::Block).unwrap();
    };
    let mut bytes = vec![0; PAGE];
    write(2 * PAGE);
    mapped.file.read_exact_at(&mut bytes, 2 * PAGE as u64).unwrap();
    assert_eq!(first_mismatch(&bytes, 77, 0), None);
    mapped.punch(4 * PAGE as i64, PAGE as i64);
    write(4 * PAGE);
    mapped.file.read_exact_at(&mut bytes, 4 * PAGE as u64).unwrap();
    assert!(bytes == [0; PAGE], "written into a page that is no longer the file's");
    assert!(seen(&*device, mapped.address.wrapping_add(4 * PAGE), PAGE) == pattern(77, 0, PAGE));
    // SAFETY: unused by now.
    unsafe { device.free(memory) };
    drop((stream, registered, mapped));
    tidy(fake);
}

#[test]
fn a_device_must_not_write_what_is_registered_for_reading() {
    let (fake, device) = device();
    let mapped = Mapped::in_memory(16 * PAGE, 4);
    let registered = Registered::new(&*device, &mapped, Access::ReadOnly);
    let (stream, memory) = (device.stream(Context::PRIMARY).unwrap(), device.allocate(PAGE).unwrap());
    let base = mapped.address as u64;
    type Work<'a> = &'a dyn Fn(&dyn Stream) -> Result<()>;
    // SAFETY: the ranges live until the synchronisation.
    let works: [Work; 3] = unsafe {
        [
            &|stream| stream.copy_out(HostRange::new(base as *mut u8, PAGE), memory),
            &|stream| stream.fill_pattern(DeviceRange::new(base, PAGE), 1, 0),
            &|stream| stream.zero(DeviceRange::new(base, PAGE)),
        ]
    };
    for work in works {
        work(&*stream).unwrap();
        let error = stream.synchronize(Wait::Block).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
        fake.reset();
    }
    assert!(seen(&*device, mapped.address, PAGE) == pattern(4, 0, PAGE));
    // SAFETY: unused by now.
    unsafe { device.free(memory) };
    drop((stream, registered, mapped));
    tidy(fake);
}

#[test]
fn what_the_driver_refuses_is_refused() {
    let (fake, device) = device();
    let kind = |address, len, access| register(&*device, address, len, access).unwrap_err().kind();
    let mapped = Mapped::on_disk(8 * PAGE, 1);
    let file = &mapped.file;
    assert_eq!(kind(mapped.address, mapped.len, Access::ReadWrite), ErrorKind::InvalidInput, "PROT_READ");
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let writable = Mapped::map(file, 8 * PAGE, both, libc::MAP_SHARED);
    assert_eq!(kind(writable, 8 * PAGE, Access::ReadWrite), ErrorKind::InvalidInput, "a file on disk");
    let private = Mapped::map(file, 8 * PAGE, libc::PROT_READ, libc::MAP_PRIVATE);
    assert_eq!((kind(private, PAGE, Access::ReadOnly), fake.hazards()), (ErrorKind::InvalidInput, 1));
    file.set_len(7 * PAGE as u64).unwrap();
    let error = register(&*device, mapped.address, mapped.len, Access::ReadOnly).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot pin the pages: the file was cut short, or its file system does not allow it (len=32768, access=ReadOnly)"
    );
    // SAFETY: mapped above, unmapped once.
    unsafe {
        libc::munmap(writable.cast(), 8 * PAGE);
        libc::munmap(private.cast(), 8 * PAGE);
    }
    assert_eq!(kind(writable, PAGE, Access::ReadOnly), ErrorKind::InvalidInput, "not mapped");

    let memory = Mapped::in_memory(PAGE, 1);
    let registered = Registered::new(&*device, &memory, Access::ReadOnly);
    assert_eq!(kind(registered.1, PAGE, Access::ReadOnly), ErrorKind::AlreadyExists);
    drop(registered);
    for (code, wanted) in [
        (1, ErrorKind::InvalidInput),
        (2, ErrorKind::OutOfMemory),
        (712, ErrorKind::AlreadyExists),
        (801, ErrorKind::Unsupported),
    ] {
        fake.fail_next("cuMemHostRegister_v2", code, 0, 1);
        assert_eq!(kind(mapped.address, PAGE, Access::ReadOnly), wanted, "{code}");
    }
    drop(mapped);
    tidy(fake);
}

#[test]
fn attributes_decide() {
    let (fake, device) = device();
    let mapped = Mapped::on_disk(PAGE, 1);
    for (number, name) in [
        (113, "READ_ONLY_HOST_REGISTER_SUPPORTED"),
        (99, "HOST_REGISTER_SUPPORTED"),
        (91, "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM"),
    ] {
        fake.set_attribute(number, 0);
        let error = device.can_register(Access::ReadOnly).unwrap_err();
        assert_eq!((error.kind(), error.hints().len()), (ErrorKind::Unsupported, 1), "{error:?}");
        assert!(error.to_string().contains(name), "{error}");
        assert_eq!(device.can_register(Access::ReadWrite).is_ok(), number == 113);
        let error = register(&*device, mapped.address, PAGE, Access::ReadOnly).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        fake.reset();
    }
    device.can_register(Access::ReadOnly).unwrap();
    drop(mapped);
    tidy(fake);
}

#[test]
fn a_call_hangs_when_told_to() {
    let (fake, device) = device();
    let mapped = Mapped::on_disk(PAGE, 1);
    fake.hang_next("cuMemHostRegister_v2", 60);
    let start = Instant::now();
    drop(Registered::new(&*device, &mapped, Access::ReadOnly));
    assert!(start.elapsed() >= Duration::from_millis(60));
    let start = Instant::now();
    drop(Registered::new(&*device, &mapped, Access::ReadOnly));
    assert!(start.elapsed() < Duration::from_millis(60), "only once");
    tidy(fake);
}

#[test]
fn neighbours_are_one_range_to_kernels_but_not_to_copies() {
    let (fake, device) = device();
    let mapped = Mapped::on_disk(4 * PAGE, 6);
    let halves = [mapped.address, mapped.address.wrapping_add(2 * PAGE)];
    for half in halves {
        register(&*device, half, 2 * PAGE, Access::ReadOnly).unwrap();
    }
    let (stream, memory) = (device.stream(Context::PRIMARY).unwrap(), device.allocate(2 * PAGE).unwrap());
    let list = Pinned::new(&device, size_of::<CopyPiece>());
    let middle = mapped.address.wrapping_add(PAGE);
    list.put(0, CopyPiece { src: middle as u64, dst: memory, len: 2 * PAGE as u64 });
    // SAFETY: all that is named lives until the synchronisation.
    unsafe {
        stream.scatter(list.device, 1, 2 * PAGE).unwrap();
        stream.synchronize(Wait::Block).unwrap();
        assert_eq!(
            stream.copy_in(memory, HostRange::new(middle, 2 * PAGE)).unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
        assert_eq!(first_mismatch(&on_device(fake, memory, 2 * PAGE), 6, PAGE as u64), None);
        device.free(memory);
        for half in halves {
            device.unregister(half).unwrap();
        }
        assert_eq!(device.unregister(halves[0]).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    drop((stream, list, mapped));
    tidy(fake);
}
