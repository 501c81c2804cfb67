//! A file that is cut and grows again with the same bytes, beside reads longer than a slot: whatever a call says it has read was
//! read. Memory is marked before each read, and no mark may be left where bytes count.

use std::fs::File as Plain;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use forebay::gpu::Device;
use forebay::{Direction, File, Memory as Place, Receipt, Session, Transfer};

use crate::bytes::{make, open, pattern};
use crate::cufile::{Handle, Params, cufile};
use crate::gpu::{Memory, gpu};
use crate::random::Random;
use crate::trial::{Outcome, Trial};

const KEY: u64 = 11;
/// Many slots.
const LEN: usize = 16 << 20;
const MARK: u8 = 0xA7;
const READERS: usize = 3;

pub fn run(trial: &'static Trial) -> Outcome {
    let path = trial.place(&mut trial.random("regrowth")).join("file");
    make(&path, KEY, LEN as u64);
    let plain = open(&path, 0).expect("a new file");
    let handle = cufile().register(plain.as_raw_fd()).expect("a registered file");
    let file = File::open(&path).expect("a new file");
    let bytes = pattern(KEY, 0, LEN);
    std::thread::scope(|scope| {
        scope.spawn(|| write(trial, &plain, &bytes));
        for number in 0..READERS {
            let (file, bytes) = (&file, &bytes);
            scope.spawn(move || {
                let random = trial.random(&format!("reader {number}"));
                let session = Session::open().expect("a session");
                let (on_gpu, on_host) = (gpu().memory(LEN), vec![MARK; LEN]);
                Reader { trial, session, file, handle, bytes, on_gpu, on_host, random }.read();
            });
        }
    });
    cufile().deregister(handle);
    Ok(())
}

/// Cuts the file anywhere, and writes the rest again, as `open("wb").write()` does from its start.
fn write(trial: &Trial, plain: &Plain, bytes: &[u8]) {
    let mut random = trial.random("writer");
    while !trial.is_over() {
        let left = if random.once_in(3) { 0 } else { random.below(LEN as u64) };
        plain.set_len(left).expect("a file that can be cut");
        std::thread::sleep(Duration::from_micros(random.below(3000)));
        plain.write_all_at(&bytes[left as usize..], left).expect("room for the file");
        std::thread::sleep(Duration::from_micros(random.below(10_000)));
        trial.add("cuts", 1);
    }
}

struct Reader<'a> {
    trial: &'static Trial,
    session: Session,
    file: &'a File,
    handle: Handle,
    bytes: &'a [u8],
    on_gpu: Memory,
    on_host: Vec<u8>,
    random: Random,
}

impl Reader<'_> {
    fn read(&mut self) {
        while !self.trial.is_over() {
            let offset = self.random.below(LEN as u64 / 2) as usize;
            let len =
                self.random.between((4 << 20).min((LEN - offset) as u64), (LEN - offset) as u64) as usize;
            let is_host = self.random.once_in(2);
            self.mark(is_host, len);
            let way = self.random.one_of(&[
                "cuFileRead",
                "a batch",
                "Session::run",
                "Session::submit",
                "submit_on",
            ]);
            let what = || format!("{way} of {len} bytes at {offset} beside cuts, host memory: {is_host}");
            let got = self.trial.call(what, || self.one(way, is_host, (offset, len)));
            self.trial.add("reads", 1);
            match got {
                Ok(got) => self.judge(&what(), is_host, (offset, got)),
                Err(error) => self.trial.fail(format!("{}: {error}", what())),
            }
        }
    }

    fn mark(&mut self, is_host: bool, len: usize) {
        if is_host {
            self.on_host[..len].fill(MARK);
        } else {
            self.on_gpu.put(0, &vec![MARK; len]);
        }
    }

    /// The bytes that a read says it has read.
    fn one(&mut self, way: &str, is_host: bool, (offset, len): (usize, usize)) -> Result<usize, String> {
        let address = if is_host { self.on_host.as_mut_ptr() as u64 } else { self.on_gpu.address };
        let told = |told: isize| usize::try_from(told).map_err(|_| told.to_string());
        match way {
            "cuFileRead" => return told(cufile().read(self.handle, address, len, offset as u64)),
            "a batch" => {
                let mut entries = [Params::new(self.handle, true, address, len, offset as u64, 0)];
                let results = cufile().run_batch(&mut entries).map_err(|code| code.to_string())?;
                return told(results[0]);
            }
            _ => {}
        }
        let memory = Place::new(self.device(is_host), address);
        let (file, direction) = (self.file.clone(), Direction::Read);
        let asked = Transfer { file, offset: offset as u64, memory, len, direction, allow_short: true };
        // SAFETY: the memory lives, and this thread alone uses it, until all is waited for.
        let got = unsafe {
            match way {
                "Session::run" => self.session.run(&asked).map(|receipt| receipt.bytes()),
                "Session::submit" => self.session.submit(vec![asked]).and_then(|ticket| {
                    ticket.wait().into_result().map(|(receipt, ())| Receipt::bytes(&receipt))
                }),
                _ => self.session.submit_on(0, vec![asked]).and_then(|ticket| {
                    let mut outcome = ticket.wait();
                    outcome.entries.swap_remove(0)
                }),
            }
        };
        got.map(|got| got as usize).map_err(|error| error.to_string())
    }

    fn device(&self, is_host: bool) -> Arc<dyn Device> {
        let devices = self.session.devices();
        if is_host { devices.host.clone() } else { devices.gpus[0].clone() }
    }

    /// What counts is the file's, or zeros where a page was just being filled.
    fn judge(&self, what: &str, is_host: bool, (offset, got): (usize, usize)) {
        let found = if is_host { self.on_host[..got].to_vec() } else { self.on_gpu.get(0, got) };
        let want = &self.bytes[offset..offset + got];
        let wrong = found.iter().zip(want).position(|(found, want)| found != want && *found != 0);
        self.trial.add("bytes compared", got as u64);
        self.trial.check(wrong.is_none(), || format!("{what}: {got} count, but byte {wrong:?} was not read"));
    }
}
