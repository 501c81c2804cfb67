//! Measures the cost of single calls on this machine: user and system CPU and wall time for each, with one and several
//! threads on one CPU. `docs/benchmarks/2026-11-21.md` explains the figures of small transfers with it.
//!
//! `cargo run --release -p forebay-gpu --example call_costs`

mod common;

use std::time::Instant;

use common::cpu;
use forebay_gpu::{Context, CopyPiece, Devices, HostRange, Result, Stream, Wait};

const CALLS: u32 = 20_000;

fn measure(name: &str, mut call: impl FnMut(u32) -> Result<()>) -> Result<()> {
    for index in 0..1000 {
        call(index)?;
    }
    let (before, start) = (cpu(), Instant::now());
    for index in 0..CALLS {
        call(index)?;
    }
    let (wall, after) = (start.elapsed(), cpu());
    let each = |seconds: f64| seconds * 1e6 / f64::from(CALLS);
    println!(
        "{name:<44} {:>8.2} µs wall {:>8.2} µs user {:>8.2} µs system",
        each(wall.as_secs_f64()),
        each(after.0 - before.0),
        each(after.1 - before.1)
    );
    Ok(())
}

fn main() -> Result<()> {
    let devices = Devices::discover();
    let device = devices.get(0)?;
    println!("{}", device.info().name);
    device.kernels(Context::PRIMARY)?;
    let stream = device.stream(Context::PRIMARY)?;
    let event = stream.event()?;
    let target = device.allocate(1 << 20)?;
    let mut host = vec![0u8; (1 << 20) + 8192];
    let start = host.as_mut_ptr().wrapping_add(host.as_ptr().align_offset(4096));
    // SAFETY: the vector lives until `unpin` below.
    let reach = unsafe { device.pin(HostRange::new(start, 1 << 20))? };
    #[allow(clippy::cast_ptr_alignment, reason = "`start` is aligned to a page")]
    let list = start.cast::<CopyPiece>();
    // SAFETY: pinned host memory of enough size; nobody else uses it.
    unsafe { list.write(CopyPiece { src: reach + 8192, dst: target, len: 4096 }) };
    let copy = |stream: &dyn Stream| {
        // SAFETY: both ranges are valid until the end of the program's measurements.
        unsafe { stream.copy_in(target, HostRange::new(start.wrapping_add(8192), 4096)) }
    };
    let drain = |index: u32| if index % 64 == 63 { stream.synchronize(Wait::Spin) } else { Ok(()) };
    measure("copy 4 KiB, waited for every 64", |index| copy(stream.as_ref()).and_then(|()| drain(index)))?;
    measure("copy + record", |index| {
        copy(stream.as_ref())?;
        stream.record(event.as_ref())?;
        drain(index)
    })?;
    measure("kernel with one piece, waited for every 64", |index| {
        // SAFETY: list and piece are valid as above.
        unsafe { stream.scatter(reach, 1, 4096) }?;
        drain(index)
    })?;
    measure("query of a done event", |_| event.is_done().map(drop))?;
    for (name, wait) in [("spinning", Wait::Spin), ("blocking", Wait::Block)] {
        measure(&format!("copy + record + wait, {name}"), |_| {
            copy(stream.as_ref())?;
            stream.record(event.as_ref())?;
            event.wait(wait)
        })?;
    }
    measure("copy + record + wait, napping 10 µs", |_| {
        copy(stream.as_ref())?;
        stream.record(event.as_ref())?;
        while !event.is_done()? {
            std::thread::sleep(std::time::Duration::from_micros(10));
        }
        Ok(())
    })?;
    measure("copy + record + wait, yielding", |_| {
        copy(stream.as_ref())?;
        stream.record(event.as_ref())?;
        while !event.is_done()? {
            std::thread::yield_now();
        }
        Ok(())
    })?;
    stream.synchronize(Wait::Block)?;
    // SAFETY: all work is done; both came from this device.
    unsafe {
        device.unpin(start);
        device.free(target);
    }
    Ok(())
}
