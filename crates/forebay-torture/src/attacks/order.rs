//! Calls behind work that still stands on a default stream: a read's bytes come after work queued before it, a write
//! takes the bytes that work queued before it makes.

use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::bytes::{difference, make, open, pattern};
use crate::cufile::{Params, cufile};
use crate::gpu::{DEFAULT_STREAMS, gpu};
use crate::random::Random;
use crate::trial::{Outcome, Trial};

const MOST: u64 = 8 << 20;
const LEN: u64 = 16 << 20;
const KEY: u64 = 5;

pub fn run(trial: &'static Trial) -> Outcome {
    let mut random = trial.random("order");
    let places = [trial.place(&mut random).to_owned(), trial.place(&mut random).to_owned()];
    gpu().fake.set_delay_us(random.one_of(&[300, 3000, 20_000]));
    std::thread::scope(|scope| {
        for (number, place) in places.iter().enumerate() {
            let random = Random::new(random.next(), "caller");
            scope.spawn(move || call(trial, &place.join(format!("file-{number}")), random));
        }
    });
    Ok(())
}

fn call(trial: &Trial, path: &Path, mut random: Random) {
    let gpu = gpu();
    make(path, KEY, LEN);
    let file =
        open(path, random.one_of(&[0, libc::O_DIRECT])).or_else(|_| open(path, 0)).expect("a new file");
    let plain = open(path, 0).expect("a new file");
    let handle = cufile().register(file.as_raw_fd()).expect("a registered file");
    let memory = gpu.memory(MOST as usize);
    while !trial.is_over() {
        let len = random.len(MOST);
        let size = len as usize;
        let stream = random.one_of(DEFAULT_STREAMS);
        if random.once_in(3) {
            // New bytes come late into memory, which held other ones before.
            let key = random.next();
            let offset = random.below(LEN - len + 1);
            let pinned = gpu.pinned(&pattern(key, offset, size));
            memory.put(0, &vec![0xEE; size]);
            gpu.copy_in(memory.address, &pinned, size, stream);
            let found = trial.call(
                || format!("cuFileWrite of {len}"),
                || cufile().write(handle, memory.address, size, offset),
            );
            trial.check(found == len as isize, || format!("cuFileWrite of {len} gave {found}"));
            let mut bytes = vec![0; size];
            plain.read_exact_at(&mut bytes, offset).expect("the file is as long");
            let wrong = difference(&bytes, key, offset);
            trial.check(wrong.is_none(), || {
                format!("cuFileWrite of {len} bytes wrote what the memory held before the copy on the default stream (byte {wrong:?})")
            });
            gpu.synchronize(stream);
            plain.write_all_at(&pattern(KEY, offset, size), offset).expect("room for what was there");
            trial.add("writes", 1);
        } else {
            let offset = random.below(LEN - len + 1);
            for _ in 0..random.between(1, 4) {
                gpu.set(memory.address, 0x5A, size, stream);
            }
            let is_batch = random.once_in(3);
            let found = trial.call(
                || format!("cuFileRead of {len}"),
                || {
                    if !is_batch {
                        return cufile().read(handle, memory.address, size, offset);
                    }
                    let entry = Params::new(handle, true, memory.address, size, offset, 0);
                    cufile().run_batch(&mut [entry]).map_or(-1, |results| results[0])
                },
            );
            trial.check(found == len as isize, || format!("a read of {len} gave {found}"));
            gpu.synchronize(stream);
            let wrong = difference(&memory.get(0, size), KEY, offset);
            let what = if is_batch { "a batch" } else { "cuFileRead" };
            trial.check(wrong.is_none(), || {
                format!("{what} of {len} bytes: a memset queued before it came after it (byte {wrong:?})")
            });
            trial.add("reads", 1);
        }
        trial.add("bytes compared", len);
    }
    cufile().deregister(handle);
}
