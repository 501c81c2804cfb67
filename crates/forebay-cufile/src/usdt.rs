//! Static probes (USDT) under the names of NVIDIA's library, so that published bcc and bpftrace lines work.
//!
//! A probe is a `nop` and a note in the ELF file that says where it is and which registers hold its arguments (version
//! 3 of SystemTap's format). It costs the `nop` and having the arguments in registers; a tracer puts a breakpoint there.
//!
//! ```sh
//! readelf -n libcufile.so.0
//! bpftrace -e 'usdt:./libcufile.so.0:cufio:cufio_px_read { @bytes[arg5] = hist(arg2); }'
//! ```
//!
//! Arguments follow NVIDIA's documentation where it tells them. Those of the bounce-buffer probes and of `io-done`
//! are forebay's choice. Nothing here uses RDMA: its probes are listed, so that scripts which name them attach, and
//! never fire.
//!
//! The notes are written here because no crate writes these. `probe` 0.5 takes provider and name as identifiers, which
//! have no hyphens (`cufio-internal-map`), and gives every argument as `-8@`. `usdt` 0.6 gives a provider no hyphen either
//! and a probe at most six arguments (`cufio_gds_read` has seven); it reads a semaphore and branches at each probe.
#![allow(
    dead_code,
    reason = "probes exist for those who attach to them, whether or not something fires them"
)]

use std::hint::black_box;

/// How an argument is written in a note: its size, negative if signed, and its register.
#[cfg(target_arch = "x86_64")]
macro_rules! kind {
    (s32) => {
        "-4@%{:e}"
    };
    (s64) => {
        "-8@%{:r}"
    };
    (u64) => {
        "8@%{:r}"
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! kind {
    (s32) => {
        "-4@{:w}"
    };
    (s64) => {
        "-8@{:x}"
    };
    (u64) => {
        "8@{:x}"
    };
}

/// A probe with arguments in registers.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! probe {
    ($provider:literal, $name:literal, $first:ident $first_value:expr $(, $kind:ident $value:expr)*) => {
        // SAFETY: a nop; the rest goes into sections that the program does not touch.
        unsafe {
            std::arch::asm!(
                "990: nop",
                ".pushsection .note.stapsdt,\"?\",\"note\"",
                ".balign 4",
                ".4byte 992f-991f,994f-993f,3",
                "991: .asciz \"stapsdt\"",
                "992: .balign 4",
                "993: .8byte 990b",
                // Tells how far the file was moved after the notes were written (prelink).
                ".8byte _.stapsdt.base",
                // No semaphore: the probe is always there.
                ".8byte 0",
                concat!(".asciz \"", $provider, "\""),
                concat!(".asciz \"", $name, "\""),
                concat!(".asciz \"", kind!($first) $(, " ", kind!($kind))*, "\""),
                "994: .balign 4",
                ".popsection",
                ".ifndef _.stapsdt.base",
                ".pushsection .stapsdt.base,\"aGR\",\"progbits\",.stapsdt.base,comdat",
                ".weak _.stapsdt.base",
                ".hidden _.stapsdt.base",
                "_.stapsdt.base: .space 1",
                ".size _.stapsdt.base,1",
                ".popsection",
                ".endif",
                in(reg) $first_value,
                $(in(reg) $value,)*
                options(readonly, nostack, preserves_flags)
            );
        }
    };
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
macro_rules! probe {
    ($provider:literal, $name:literal $(, $kind:ident $value:expr)*) => {
        let _ = ($($value,)*);
    };
}

/// A transfer through host memory and plain file calls.
macro_rules! plain_transfer {
    ($(#[$doc:meta])* $function:ident $name:literal) => {
        $(#[$doc])*
        #[inline]
        pub(crate) fn $function(fd: i32, offset: i64, size: u64, buf_offset: i64, ret: i64, gpu: i32) {
            probe!("cufio", $name, s32 fd, s64 offset, u64 size, s64 buf_offset, s64 ret, s32 gpu);
        }
    };
}

/// A transfer by a shorter way; `bounced` says that it went through a buffer on the GPU.
macro_rules! direct_transfer {
    ($(#[$doc:meta])* $function:ident $name:literal) => {
        $(#[$doc])*
        #[inline]
        pub(crate) fn $function(fd: i32, offset: i64, size: u64, buf_offset: i64, ret: i64, gpu: i32, bounced: bool) {
            let bounced = i32::from(bounced);
            probe!("cufio", $name, s32 fd, s64 offset, u64 size, s64 buf_offset, s64 ret, s32 gpu, s32 bounced);
        }
    };
}

/// One part of a transfer, and where it lies in the buffer between.
macro_rules! bounced_part {
    ($(#[$doc:meta])* $function:ident $name:literal) => {
        $(#[$doc])*
        #[inline]
        pub(crate) fn $function(fd: i32, offset: i64, size: u64, buf_offset: i64, bounce_offset: i64, gpu: i32) {
            probe!("cufio-internal", $name, s32 fd, s64 offset, u64 size, s64 buf_offset, s64 bounce_offset, s32 gpu);
        }
    };
}

plain_transfer! {
    /// A read through host memory ended.
    px_read "cufio_px_read"
}
plain_transfer! {
    /// A write through host memory ended.
    px_write "cufio_px_write"
}
plain_transfer! {
    /// Never fires.
    rdma_read "cufio_rdma_read"
}
plain_transfer! {
    /// Never fires.
    rdma_write "cufio_rdma_write"
}
direct_transfer! {
    /// A read by a shorter way ended.
    gds_read "cufio_gds_read"
}
direct_transfer! {
    /// A write by a shorter way ended.
    gds_write "cufio_gds_write"
}
direct_transfer! {
    /// A read in a stream ended.
    gds_read_async "cufio_gds_read_async"
}
direct_transfer! {
    /// A write in a stream ended.
    gds_write_async "cufio_gds_write_async"
}
direct_transfer! {
    /// A write with an unaligned head or tail ended.
    gds_unaligned_write "cufio_gds_unaligned_write"
}
bounced_part! {
    /// A part of a write is copied to the buffer between.
    write_bb "cufio-internal-write-bb"
}
bounced_part! {
    /// A part of a read is copied from the buffer between.
    read_bb "cufio-internal-read-bb"
}
bounced_part! {
    /// The buffer between is free again.
    bb_done "cufio-internal-bb-done"
}

/// A file call ended.
#[inline]
pub(crate) fn io_done(fd: i32, offset: i64, size: u64, ret: i64, gpu: i32) {
    probe!("cufio-internal", "cufio-internal-io-done", s32 fd, s64 offset, u64 size, s64 ret, s32 gpu);
}

/// Memory of a GPU was registered.
#[inline]
pub(crate) fn map(gpu: i32, size: u64, max_direct_io_size: u64, pinned: bool, bounce: bool, gpu_offset: i64) {
    let (pinned, bounce) = (i32::from(pinned), i32::from(bounce));
    probe!(
        "cufio-internal", "cufio-internal-map",
        s32 gpu, u64 size, u64 max_direct_io_size, s32 pinned, s32 bounce, s64 gpu_offset
    );
}

/// Puts each probe into the library once, so that scripts which name one find it. Nobody calls it.
#[used]
static LISTED: fn() = all;

fn all() {
    let (small, signed, size, flag) = black_box((0, 0, 0, false));
    px_read(small, signed, size, signed, signed, small);
    px_write(small, signed, size, signed, signed, small);
    rdma_read(small, signed, size, signed, signed, small);
    rdma_write(small, signed, size, signed, signed, small);
    gds_read(small, signed, size, signed, signed, small, flag);
    gds_write(small, signed, size, signed, signed, small, flag);
    gds_read_async(small, signed, size, signed, signed, small, flag);
    gds_write_async(small, signed, size, signed, signed, small, flag);
    gds_unaligned_write(small, signed, size, signed, signed, small, flag);
    write_bb(small, signed, size, signed, signed, small);
    read_bb(small, signed, size, signed, signed, small);
    bb_done(small, signed, size, signed, signed, small);
    io_done(small, signed, size, signed, small);
    map(small, size, size, flag, flag, signed);
}
