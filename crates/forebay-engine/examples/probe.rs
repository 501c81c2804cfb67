//! Scratch measurements while tuning (not shipped).
#![allow(missing_docs, clippy::all, clippy::pedantic, clippy::unwrap_used)]
use forebay_config::*;
use forebay_engine::*;
use forebay_gpu::*;
use std::time::Instant;
fn cpu() -> (f64, f64) {
    unsafe {
        let mut u: libc::rusage = std::mem::zeroed();
        libc::getrusage(0, &mut u);
        (
            u.ru_utime.tv_sec as f64 + u.ru_utime.tv_usec as f64 / 1e6,
            u.ru_stime.tv_sec as f64 + u.ru_stime.tv_usec as f64 / 1e6,
        )
    }
}
fn timed(name: &str, bytes: f64, ops: f64, rounds: usize, mut f: impl FnMut()) {
    f();
    let mut v = vec![];
    for _ in 0..rounds {
        let c = cpu();
        let t = Instant::now();
        f();
        let s = t.elapsed().as_secs_f64();
        let d = cpu();
        v.push((s, d.0 - c.0, d.1 - c.1));
    }
    v.sort_by(|a, b| a.0.total_cmp(&b.0));
    let m = v[v.len() / 2];
    println!(
        "{name:<52} {:8.2} GB/s {:9.0} IOPS cpu/GB u {:.4} s {:.4}",
        bytes / m.0 / 1e9,
        ops / m.0,
        m.1 * 1e9 / bytes,
        m.2 * 1e9 / bytes
    );
}
struct R(u64);
impl R {
    fn n(&mut self, b: u64) -> u64 {
        self.0 += 1;
        pattern_word(self.0, 8) % b
    }
}
fn main() {
    let dir = std::env::args().nth(1).unwrap();
    let gib: usize = std::env::args().nth(2).map_or(4, |s| s.parse().unwrap());
    let what = std::env::args().nth(3).unwrap_or("all".into());
    let on = |w: &str| what == "all" || what.contains(w);
    let len = gib << 30;
    let path = format!("{dir}/probe.bin");
    let base = Session::with_config(Config::default()).unwrap();
    let dev = base.device(0).unwrap();
    println!("{:?}", dev.info());
    println!("{:?}", base.report(&dev));
    println!("kernels {:?}", dev.kernels(Context::PRIMARY));
    let buf = Buffer::new(dev.clone(), len).unwrap();
    let st = dev.stream(Context::PRIMARY).unwrap();
    {
        unsafe { st.fill_pattern(buf.address(), len, 9, 0).unwrap() };
        st.synchronize(Wait::Block).unwrap();
        let f = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .cache(CachePolicy::Keep)
            .open(&path)
            .unwrap();
        let t = Instant::now();
        base.write(&f, 0, &buf).unwrap();
        println!("wrote in {:?}", t.elapsed());
        f.sync().unwrap();
    }
    let f = File::open(&path).unwrap();
    let mem = |a: u64| Memory::new(dev.clone(), a);
    println!("{:?} {:?} {}", f.residency(0, len as u64), f.alignment(), f.file_system());
    if on("warm") {
        for (lanes, slots, ss) in [
            (8, 4, 4 << 20),
            (8, 4, 2 << 20),
            (8, 8, 1 << 20),
            (6, 4, 4 << 20),
            (10, 4, 4 << 20),
            (1, 4, 4 << 20),
        ] {
            let s =
                Session::with_config(Config { lanes, slots, slot_size: ss, ..Config::default() }).unwrap();
            let t = Transfer {
                file: f.clone(),
                offset: 0,
                memory: mem(buf.address()),
                len,
                direction: Direction::Read,
                allow_short: false,
            };
            let mut last = None;
            timed(&format!("warm lanes {lanes} slots {slots}x{}K", ss >> 10), len as f64, 1.0, 5, || {
                last = Some(unsafe { s.run(&t).unwrap() })
            });
            println!("   {}", last.unwrap());
        }
        println!("{:?}", unsafe { st.check_pattern(buf.address(), len, 9, 0) });
    }
    if on("rand") {
        for (lanes, threads) in [(1, 1), (4, 2), (8, 4), (8, 8)] {
            let s = Session::with_config(Config { lanes, ..Config::default() }).unwrap();
            let n = 256 * 200 * lanes;
            timed(
                &format!("rand 4K b256 lanes {lanes} threads {threads}"),
                n as f64 * 4096.0,
                n as f64,
                5,
                || {
                    std::thread::scope(|sc| {
                        for th in 0..threads {
                            let (s, f, mem, buf) = (&s, &f, &mem, &buf);
                            sc.spawn(move || {
                                let mut r = R(th as u64 * 1_000_000_007);
                                let mut q = std::collections::VecDeque::new();
                                for b in 0..(200 * lanes / threads) {
                                    let pieces = (0..256)
                                        .map(|i| Piece {
                                            offset: r.n(len as u64 / 4096) * 4096,
                                            address: buf.address()
                                                + ((th * 64 + b % 64) * 256 + i) as u64 * 4096,
                                            len: 4096,
                                        })
                                        .collect();
                                    let t = unsafe {
                                        s.submit_batch(Batch {
                                            file: f.clone(),
                                            memory: mem(0),
                                            direction: Direction::Read,
                                            pieces,
                                            allow_short: false,
                                        })
                                        .unwrap()
                                    };
                                    q.push_back(t);
                                    if q.len() > 3 * lanes / threads {
                                        q.pop_front().unwrap().wait().result().unwrap();
                                    }
                                }
                                for t in q {
                                    t.wait().result().unwrap();
                                }
                            });
                        }
                    });
                },
            );
        }
    }
    if on("lat") {
        let h = vec![0u8; 8192];
        unsafe { dev.pin(h.as_ptr() as *mut u8, 4096).ok() };
        let ev = st.event().unwrap();
        for round in 0..3 {
            for (n, w) in [("spin", Wait::Spin), ("block", Wait::Block)] {
                let mut r = R(3);
                timed(&format!("bare pread+copy+{n}"), 4096e4, 1e4, 5, || {
                    for _ in 0..10000 {
                        unsafe {
                            libc::pread(
                                f.raw_fd().unwrap(),
                                h.as_ptr() as *mut _,
                                4096,
                                (r.n(len as u64 / 4096) * 4096) as i64,
                            );
                            st.copy_in(buf.address(), h.as_ptr(), 4096).unwrap();
                            st.record(ev.as_ref()).unwrap();
                            ev.wait(w).unwrap();
                        }
                    }
                });
            }
            for obj in [Objective::Latency, Objective::Throughput, Objective::Cpu] {
                let s = Session::with_config(Config { objective: obj, ..Config::default() }).unwrap();
                let mut r = R(3);
                timed(&format!("{round} sync 4K {obj}: us = 1e6/IOPS"), 4096e4, 1e4, 5, || {
                    for _ in 0..10000 {
                        unsafe {
                            s.run(&Transfer {
                                file: f.clone(),
                                offset: r.n(len as u64 / 4096) * 4096,
                                memory: mem(buf.address()),
                                len: 4096,
                                direction: Direction::Read,
                                allow_short: false,
                            })
                            .unwrap()
                        };
                    }
                });
            }
        }
        unsafe { dev.unpin(h.as_ptr() as *mut u8) };
        for sz in [16usize << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20] {
            let n = (1usize << 30) / sz;
            timed(&format!("sync {}K", sz >> 10), (n * sz) as f64, n as f64, 3, || {
                for i in 0..n {
                    unsafe {
                        base.run(&Transfer {
                            file: f.clone(),
                            offset: (i * sz) as u64,
                            memory: mem(buf.address()),
                            len: sz,
                            direction: Direction::Read,
                            allow_short: false,
                        })
                        .unwrap()
                    };
                }
            });
        }
    }
    if on("cold") {
        for (lanes, slots, ss, io) in [
            (8, 4, 4 << 20, IoBackend::Auto),
            (8, 4, 2 << 20, IoBackend::Auto),
            (8, 4, 1 << 20, IoBackend::Auto),
            (8, 4, 4 << 20, IoBackend::Threads),
        ] {
            let s = Session::with_config(Config {
                lanes,
                slots,
                slot_size: ss,
                cache: CachePolicy::Bypass,
                io,
                ..Config::default()
            })
            .unwrap();
            let l = 2usize << 30;
            let t = Transfer {
                file: f.clone(),
                offset: 0,
                memory: mem(buf.address()),
                len: l,
                direction: Direction::Read,
                allow_short: false,
            };
            timed(&format!("direct 2G lanes {lanes} {slots}x{}K {io}", ss >> 10), l as f64, 1.0, 3, || {
                unsafe { s.run(&t).unwrap() };
            });
        }
        let s = Session::with_config(Config { cache: CachePolicy::Bypass, ..Config::default() }).unwrap();
        for (batch, inflight) in [(16usize, 4usize), (8, 8), (1, 64), (32, 2)] {
            let n = 40000usize;
            let mut r = R(5);
            timed(
                &format!("direct rand4K batch {batch} x {inflight}"),
                n as f64 * 4096.0,
                n as f64,
                3,
                || {
                    let mut q = std::collections::VecDeque::new();
                    for b in 0..n / batch {
                        let pieces = (0..batch)
                            .map(|i| Piece {
                                offset: r.n(len as u64 / 4096) * 4096,
                                address: buf.address() + ((b % 64) * batch + i) as u64 * 4096,
                                len: 4096,
                            })
                            .collect();
                        q.push_back(unsafe {
                            s.submit_batch(Batch {
                                file: f.clone(),
                                memory: mem(0),
                                direction: Direction::Read,
                                pieces,
                                allow_short: false,
                            })
                            .unwrap()
                        });
                        if q.len() >= inflight {
                            q.pop_front().unwrap().wait().result().unwrap();
                        }
                    }
                    for t in q {
                        t.wait().result().unwrap();
                    }
                },
            );
        }
        {
            let host = base.devices().host.clone();
            let hb = Buffer::new(host.clone(), 1 << 20).unwrap();
            let n = 20000;
            let mut r = R(5);
            for infl in [1usize, 4, 64] {
                timed(&format!("direct HOST batch 1 x {infl}"), n as f64 * 4096.0, n as f64, 3, || {
                    let mut q = std::collections::VecDeque::new();
                    for b in 0..n {
                        let pieces = vec![Piece {
                            offset: r.n(len as u64 / 4096) * 4096,
                            address: hb.address() + (b % 64) as u64 * 4096,
                            len: 4096,
                        }];
                        q.push_back(unsafe {
                            s.submit_batch(Batch {
                                file: f.clone(),
                                memory: Memory::new(host.clone(), 0),
                                direction: Direction::Read,
                                pieces,
                                allow_short: false,
                            })
                            .unwrap()
                        });
                        if q.len() >= infl {
                            q.pop_front().unwrap().wait().result().unwrap();
                        }
                    }
                    for t in q {
                        t.wait().result().unwrap();
                    }
                });
            }
        }
        for (workers, obj) in [
            (1, Objective::Throughput),
            (4usize, Objective::Throughput),
            (4, Objective::Latency),
            (8, Objective::Throughput),
            (64, Objective::Throughput),
        ] {
            let s = Session::with_config(Config {
                cache: CachePolicy::Bypass,
                objective: obj,
                ..Config::default()
            })
            .unwrap();
            let per = 20000 / workers;
            timed(
                &format!("direct sync rand4K workers {workers} {obj}"),
                (per * workers) as f64 * 4096.0,
                (per * workers) as f64,
                3,
                || {
                    std::thread::scope(|sc| {
                        for w in 0..workers {
                            let (s, f, mem, buf) = (&s, &f, &mem, &buf);
                            sc.spawn(move || {
                                let mut r = R(w as u64 * 999_983);
                                for _ in 0..per {
                                    unsafe {
                                        s.run(&Transfer {
                                            file: f.clone(),
                                            offset: r.n(len as u64 / 4096) * 4096,
                                            memory: mem(buf.address() + w as u64 * 4096),
                                            len: 4096,
                                            direction: Direction::Read,
                                            allow_short: false,
                                        })
                                        .unwrap()
                                    };
                                }
                            });
                        }
                    });
                },
            );
        }
    }
    if on("write") {
        for (name, p) in [("tmpfs", "/dev/shm/probe.bin".to_owned()), ("disk", format!("{dir}/probe2.bin"))] {
            for lanes in [1, 2, 4, 8] {
                let s = Session::with_config(Config { lanes, ..Config::default() }).unwrap();
                let l = if name == "disk" { 1usize << 30 } else { 4 << 30 };
                let _ = std::fs::remove_file(&p);
                let w = File::options().write(true).create(true).truncate(true).open(&p).unwrap();
                let t = Transfer {
                    file: w.clone(),
                    offset: 0,
                    memory: mem(buf.address()),
                    len: l,
                    direction: Direction::Write,
                    allow_short: false,
                };
                let t0 = Instant::now();
                unsafe { s.run(&t).unwrap() };
                println!("{name} new lanes {lanes}: {:.2} GB/s", l as f64 / t0.elapsed().as_secs_f64() / 1e9);
                timed(&format!("{name} overwrite lanes {lanes}"), l as f64, 1.0, 3, || {
                    unsafe { s.run(&t).unwrap() };
                });
            }
            let _ = std::fs::remove_file(&p);
        }
    }
    let _ = std::fs::remove_file(&path);
}
