//! One row of `forebay report objects`: whole objects as files, by their files, or by HTTP, in one process with the gateway.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_engine::{Buffer, File, Session};
use forebay_error::{Error, ErrorKind, Result};
use forebay_gateway::{AccountEntry, Accounts, Server, ServerOptions, in_directory};
use forebay_gpu::DeviceName;
use forebay_models::Pending;
use forebay_report::{ObjectFigures, ObjectIo, ObjectWay, ObjectWork};

/// The folder that is made in the directory, and removed.
const FOLDER: &str = "forebay-report.objects";
const BUCKET: &str = "bucket";

/// Does the work below a directory, and prints its figures.
pub(crate) fn run(work: &ObjectWork, directory: &Path, device: &DeviceName) -> Result<String> {
    let place = Place::new(directory)?;
    place.fill(work)?;
    let _server = (work.way != ObjectWay::Posix).then(|| serve(&place, work.way)).transpose()?;
    if work.io == ObjectIo::Cold {
        for number in 0..work.count() {
            File::open(place.file(number))?.drop_cache()?;
        }
    }
    let figures = measured(work, &place, device)?;
    serde_json::to_string(&figures)
        .map_err(|error| Error::new(ErrorKind::Internal, format!("cannot write figures: {error}")))
}

/// Files that are objects, too.
struct Place {
    folder: PathBuf,
}

impl Place {
    fn new(directory: &Path) -> Result<Self> {
        let place = Self { folder: directory.join(FOLDER) };
        // A process that was killed left it.
        let _ = fs::remove_dir_all(&place.folder);
        fs::create_dir_all(place.folder.join(BUCKET)).map_err(|error| {
            Error::from_io(&error, "cannot make directory").with("path", place.folder.display())
        })?;
        Ok(place)
    }

    fn file(&self, number: usize) -> PathBuf {
        self.folder.join(BUCKET).join(number.to_string())
    }

    fn name(&self, way: ObjectWay, number: usize) -> PathBuf {
        match way {
            ObjectWay::Posix => self.file(number),
            ObjectWay::Local | ObjectWay::Http => format!("s3://{BUCKET}/{number}").into(),
        }
    }

    /// Writes the objects that the row reads.
    fn fill(&self, work: &ObjectWork) -> Result<()> {
        if work.io == ObjectIo::Write {
            return Ok(());
        }
        let mut bytes = vec![0; work.size as usize];
        for number in 0..work.count() {
            forebay_gpu::fill_pattern(&mut bytes, 7, number as u64 * work.size);
            let path = self.file(number);
            // Warm ones, too: pages that are still to be written keep the drive and a CPU at work.
            let written = fs::write(&path, &bytes).and_then(|()| fs::File::open(&path)?.sync_all());
            written
                .map_err(|error| Error::from_io(&error, "cannot write file").with("path", path.display()))?;
        }
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A gateway's sockets, until it is dropped.
struct Sockets(PathBuf);

impl Drop for Sockets {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A gateway in this process, and the environment that leads to it.
fn serve(place: &Place, way: ObjectWay) -> Result<Sockets> {
    let secret = format!("{:?}{}", Instant::now(), std::process::id());
    let entry = AccountEntry::new("report", secret.as_str());
    let accounts = Accounts::new(vec![entry], in_directory(&place.folder, true))?;
    let sockets = Sockets(std::env::temp_dir().join(format!("forebay-report-{}", std::process::id())));
    let mut options = ServerOptions::new(([127, 0, 0, 1], 0).into());
    options.local = Some(sockets.0.clone());
    let server = Server::bind(options, &Arc::new(accounts))?;
    let endpoint = format!("http://{}", server.address());
    let mode = if way == ObjectWay::Local { "require" } else { "off" };
    for (name, value) in [
        ("AWS_ENDPOINT_URL", endpoint.as_str()),
        ("AWS_ACCESS_KEY_ID", "report"),
        ("AWS_SECRET_ACCESS_KEY", &secret),
        ("AWS_REGION", "us-east-1"),
        ("AWS_CONFIG_FILE", "/dev/null"),
        ("AWS_SHARED_CREDENTIALS_FILE", "/dev/null"),
        ("FOREBAY_S3_LOCAL", mode),
    ] {
        // SAFETY: this process has begun no thread that reads variables.
        unsafe { std::env::set_var(name, value) };
    }
    std::thread::spawn(move || server.run(|| {}));
    Ok(sockets)
}

/// Has the threads move objects, each its own, until the time is over.
fn measured(work: &ObjectWork, place: &Place, device: &DeviceName) -> Result<ObjectFigures> {
    let session = Session::open()?;
    let mover = Mover { work, place, session: &session };
    // Threads, connections and keys are there before the clock starts.
    let mut first = mover.buffer(device)?;
    let engine = mover.warm_up(&mut first)?;
    drop(first);
    let (start, found) = (Barrier::new(work.threads + 1), Mutex::new(Vec::new()));
    let (mut latencies, mut failed) = (Vec::new(), None);
    let (mut began, mut before) = (Instant::now(), cpu());
    std::thread::scope(|scope| {
        for thread in 0..work.threads {
            let (mover, start, found) = (&mover, &start, &found);
            scope.spawn(move || {
                let buffer = mover.buffer(device);
                start.wait();
                let moved = buffer.and_then(|mut buffer| mover.share(thread, &mut buffer));
                found.lock().unwrap_or_else(PoisonError::into_inner).push(moved);
            });
        }
        start.wait();
        (began, before) = (Instant::now(), cpu());
    });
    let seconds = began.elapsed().as_secs_f64();
    let (user, system) = cpu();
    for moved in found.into_inner().unwrap_or_else(PoisonError::into_inner) {
        match moved {
            Ok(mut more) => latencies.append(&mut more),
            Err(error) => failed = Some(error),
        }
    }
    if let Some(error) = failed {
        return Err(error);
    }
    latencies.sort_by(f64::total_cmp);
    let bytes = latencies.len() as u64 * work.size;
    Ok(ObjectFigures {
        seconds,
        bytes,
        latencies,
        user_s: user - before.0,
        system_s: system - before.1,
        engine,
    })
}

/// What moves objects.
struct Mover<'a> {
    work: &'a ObjectWork,
    place: &'a Place,
    session: &'a Session,
}

impl Mover<'_> {
    fn buffer(&self, device: &DeviceName) -> Result<Buffer> {
        let size = self.work.size as usize;
        match device {
            DeviceName::Index(index) => self.session.buffer(*index, size),
            DeviceName::Bar(name) => {
                let error = Error::new(ErrorKind::Unsupported, "objects go to a GPU or to host memory");
                Err(error.with("device", name).hint("-d 0"))
            }
        }
    }

    /// Moves one object that does not count. Returns what moved it.
    fn warm_up(&self, buffer: &mut Buffer) -> Result<String> {
        if self.work.io == ObjectIo::Write {
            return self.write(usize::MAX, buffer);
        }
        let name = self.place.name(self.work.way, 0);
        let engine = self.session.read(&File::open(name)?, 0, buffer)?.engine().to_string();
        if self.work.io == ObjectIo::Cold {
            File::open(self.place.file(0))?.drop_cache()?;
        }
        Ok(engine)
    }

    /// A thread's objects: every n-th. Returns how long each took, in µs.
    fn share(&self, thread: usize, buffer: &mut Buffer) -> Result<Vec<f64>> {
        let until = Instant::now() + Duration::from_secs_f64(self.work.seconds);
        let mut latencies = Vec::new();
        loop {
            for number in (thread..self.work.count()).step_by(self.work.threads) {
                let begin = Instant::now();
                self.one(number, buffer)?;
                latencies.push(begin.elapsed().as_secs_f64() * 1e6);
                if self.work.io != ObjectIo::Cold && Instant::now() >= until {
                    return Ok(latencies);
                }
            }
            if self.work.io == ObjectIo::Cold {
                return Ok(latencies);
            }
        }
    }

    fn one(&self, number: usize, buffer: &mut Buffer) -> Result<()> {
        if self.work.io == ObjectIo::Write {
            return self.write(number, buffer).map(drop);
        }
        let file = File::open(self.place.name(self.work.way, number))?;
        self.session.read(&file, 0, buffer).map(drop)
    }

    fn write(&self, number: usize, buffer: &Buffer) -> Result<String> {
        let pending = Pending::create(self.place.name(self.work.way, number))?;
        pending.file().preallocate(self.work.size)?;
        let engine = self.session.write(pending.file(), 0, buffer)?.engine().to_string();
        pending.commit(true)?;
        Ok(engine)
    }
}

/// Seconds of CPU of this process: user, system.
fn cpu() -> (f64, f64) {
    // SAFETY: all zero is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: it lives through the call.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    (seconds(usage.ru_utime), seconds(usage.ru_stime))
}
