//! `--open-cost`: what opening, mapping, reading and closing one file costs.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::{Buffer, File, Offsets, Session};
use forebay_error::{Error, Result};
use forebay_gpu::Device;

use crate::files::cache::wait_settled;
use crate::files::open::explain;
use crate::report::{OpenCost, OpenStep, RefusalReport, median};
use crate::workload::job::Job;

/// Bytes of the first read.
const SMALL: u64 = 4096;
/// The first one in a process tries a page; later ones only look up its result.
const PROBE: &str = "probe";
/// Rounds by default.
pub const ROUNDS: usize = 20;
/// Unregistering ends in the background; a driver that takes longer than this is not waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Times of one step in all rounds.
struct Times {
    name: &'static str,
    bytes: Option<u64>,
    engine: Option<&'static str>,
    us: Vec<f64>,
}

/// Collects steps by their names.
#[derive(Default)]
struct StepTimes(Vec<Times>);

impl StepTimes {
    /// Times `step`, which says how many bytes it moved, and by which engine.
    fn time<T>(
        &mut self,
        name: &'static str,
        step: impl FnOnce() -> Result<(T, Option<u64>, Option<&'static str>)>,
    ) -> Result<T> {
        let started = Instant::now();
        let (value, bytes, engine) = step()?;
        let us = started.elapsed().as_secs_f64() * 1e6;
        match self.0.iter_mut().find(|times| times.name == name) {
            Some(times) => {
                times.us.push(us);
                times.engine = engine;
            }
            None => self.0.push(Times { name, bytes, engine, us: vec![us] }),
        }
        Ok(value)
    }

    fn steps(self) -> Vec<OpenStep> {
        let step = |times: Times| {
            let median_us = median(times.us.clone());
            OpenStep {
                name: times.name,
                median_us,
                least_us: times.us.iter().copied().fold(f64::INFINITY, f64::min),
                first_us: times.us.first().copied().unwrap_or(0.0),
                bytes: times.bytes,
                gb_per_s: times.bytes.map(|bytes| bytes as f64 / 1e3 / median_us.max(1e-3)),
                engine: times.engine,
            }
        };
        self.0.into_iter().map(step).collect()
    }
}

/// Does all steps `rounds` times.
pub(crate) fn measure(
    session: &Session,
    device: &Arc<dyn Device>,
    job: &Job,
    rounds: usize,
) -> Result<OpenCost> {
    let path = job.target.path();
    let file = File::open(path).map_err(explain)?;
    let bytes = file.len()?;
    if bytes == 0 {
        return Err(Error::new(forebay_error::ErrorKind::InvalidInput, "the file is empty")
            .with("path", path.display())
            .hint("name a file with bytes in it"));
    }
    wait_settled(session, &[&file])?;
    let mut clock = StepTimes::default();
    let probe = || session.probe_mapped(&file, device).map(|()| ((), None, None));
    let refused = clock.time(PROBE, probe).err();
    let mut whole = match refused {
        Some(_) => None,
        None => Some(Buffer::new(device.clone(), bytes as usize)?),
    };
    let file_system = file.file_system().to_owned();
    drop(file);
    for _ in 0..rounds {
        round(session, device, path, bytes, whole.as_mut(), &mut clock)?;
    }
    Ok(OpenCost {
        path: path.display().to_string(),
        bytes,
        file_system,
        device: device.info().name.clone(),
        rounds,
        refused: refused.map(|error| RefusalReport {
            engine: "mapped".to_owned(),
            reason: error.to_string(),
            hint: error.hints().first().cloned(),
        }),
        steps: clock.steps(),
    })
}

fn round(
    session: &Session,
    device: &Arc<dyn Device>,
    path: &Path,
    bytes: u64,
    whole: Option<&mut Buffer>,
    clock: &mut StepTimes,
) -> Result<()> {
    let file = clock.time("open", || Ok((File::open(path)?, None, None)))?;
    let small = bytes.min(SMALL) as usize;
    let mut page = Buffer::new(device.clone(), small)?;
    if whole.is_some() {
        clock.time(PROBE, || session.probe_mapped(&file, device).map(|()| ((), None, None)))?;
    }
    clock.time("first read of 4 KiB", || {
        let receipt = session.read(&file, 0, &mut page)?;
        Ok(((), Some(small as u64), Some(receipt.engine().name())))
    })?;
    if let Some(whole) = whole {
        in_place(session, device, &file, &mut page, whole, clock)?;
    }
    clock.time("close", || {
        drop(file);
        Ok(((), None, None))
    })
}

/// The steps that only files have whose pages the device reads in place.
fn in_place(
    session: &Session,
    device: &Arc<dyn Device>,
    file: &File,
    page: &mut Buffer,
    whole: &mut Buffer,
    clock: &mut StepTimes,
) -> Result<()> {
    let before = session.pins(device)?.process_bytes;
    let bytes = whole.len() as u64;
    let map = clock.time("map (register all)", || {
        let map = session.map(file, device)?;
        let pinned = map.pinned_bytes();
        Ok((map, Some(pinned), None))
    })?;
    let length = page.len();
    clock.time("first gather", || {
        map.gather(Offsets::Host(&[0]), length, page).map(|_| ((), Some(length as u64), Some("mapped")))
    })?;
    clock.time("read whole, pinned", || {
        let receipt = session.read(file, 0, whole)?;
        Ok(((), Some(bytes), Some(receipt.engine().name())))
    })?;
    clock.time("trim (unregister)", || {
        drop(map);
        session.trim_file(file);
        let deadline = Instant::now() + PATIENCE;
        while session.pins(device)?.process_bytes > before && Instant::now() < deadline {
            std::thread::yield_now();
        }
        Ok(((), Some(bytes), None))
    })
}
