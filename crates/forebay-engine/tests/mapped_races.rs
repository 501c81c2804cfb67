#![allow(clippy::unwrap_used)]
mod common;
#[path = "common/pages.rs"]
mod pages;
use std::time::{Duration, Instant};
use common::turn;
use forebay_engine::{Batch, Direction, Piece, Transfer, File};
use pages::*;
use std::os::unix::fs::FileExt;

// entries that were never moved are reported good
#[test]
fn r1_todo_dropped() {
    let turn = turn();
    let session = open(config());
    let len = 130 * MIB;
    let (_s, file) = subject(&memory(), 5, len);
    for _ in 0..3 { fetch(&session, &file, 0, len).unwrap(); }
    println!("pinned {}", pins(&session).bytes);
    let buffer = session.buffer(0, len).unwrap();
    let n = 10usize;
    let each = 13 * MIB;
    let transfers = (0..n).map(|i| { let mut memory = buffer.memory(); memory.address += (i*each) as u64;
        Transfer{file: file.clone(), offset: (i*each) as u64, memory, len: each, direction: Direction::Read, allow_short: false}}).collect();
    turn.fake.fail_next("cuMemcpyHtoDAsync_v2", 2, 1, 1);
    let out = unsafe { session.submit(transfers) }.unwrap().wait();
    let bytes = buffer.to_vec().unwrap();
    let want = common::pattern(5, 0, len);
    for (i, e) in out.entries.iter().enumerate() {
        println!("entry {i}: {:?} right bytes: {}", e.as_ref().map_err(|e| e.message().to_owned()), bytes[i*each..(i+1)*each] == want[i*each..(i+1)*each]);
    }
    println!("{}", out.receipt);
}

// gated read, Only mode, dead pins
#[test]
fn r2_gate_dead() {
    let turn = turn();
    let session = open(only());
    let primary = turn.fake.retain_primary(0).unwrap();
    turn.fake.set_current_context(primary).unwrap();
    let handle = turn.fake.create_stream(1).unwrap();
    let len = 10 * MIB;
    let (scratch, file) = subject(&memory(), 5, len);
    fetch(&session, &file, 0, len).unwrap();
    raw(scratch.path()).write_all_at(&[1], 0).unwrap();
    settle();
    let buffer = session.buffer(0, len).unwrap();
    let t = Transfer{file: file.clone(), offset: 0, memory: buffer.memory(), len, direction: Direction::Read, allow_short: false};
    let s = Instant::now();
    let out = unsafe { session.submit_on(handle, vec![t]) }.unwrap().wait();
    println!("gated read after a change: {:?} in {:?}", out.entries[0].as_ref().map_err(|e| e.message().to_owned()), s.elapsed());
    println!("plain read afterwards: {:?}", fetch(&session, &file, 0, len).map(|r| r.1.to_string()).map_err(|e| e.message().to_owned()));
}

// 4 MiB reads in a loop over more than the budget
#[test]
fn r3_thrash() {
    let turn = turn();
    let w = 64 * MIB;
    let session = open(forebay_config::Config { pin_budget: Some(2 * w as u64), ..config() });
    let (_s, file) = blank(&memory(), 3 * w);
    let mut b = session.buffer(0, 4 * MIB).unwrap();
    for pass in 0..6 {
        let (mut mapped, r0) = (0, turn.fake.calls("cuMemHostUnregister"));
        let s = Instant::now();
        for at in (0..3*w).step_by(4*MIB) { mapped += session.read(&file, at as u64, &mut b).unwrap().moved.mapped; std::thread::sleep(Duration::from_millis(10)); }
        println!("pass {pass}: in place {} of {} MiB, {} unregistered, {:?}", mapped >> 20, 3*w >> 20, turn.fake.calls("cuMemHostUnregister") - r0, s.elapsed());
    }
}

// batch of small writes, one window pinned and the other not
#[test]
fn r4_write_twice() {
    let turn = turn();
    let w = 64 * MIB;
    let session = open(forebay_config::Config { pin_budget: Some(w as u64), ..config() });
    let (_s, file) = blank(&memory(), 2 * w);
    let src = session.buffer(0, w).unwrap();
    for _ in 0..3 { let r = session.write(&file, 0, &src).unwrap(); println!("prepare: {r}"); settle(); }
    let mk = |n: usize| { let pieces: Vec<_> = (0..n).map(|i| Piece{ offset: ((i % 2) * w + (i/2) * 65536) as u64, address: src.address() + (i*65536) as u64, len: 65536}).collect();
        let mut p = pieces; p.sort_by_key(|p| p.offset);
        Batch{ file: file.clone(), memory: src.memory(), direction: Direction::Write, pieces: p, allow_short: false} };
    let _ = &turn;
    let out = unsafe { session.submit_batch(mk(200)) }.unwrap().wait();
    println!("wanted {} bytes; receipt {}", 200 * 65536, out.receipt);
}

// a gate somewhere, the first read on a file system
#[test]
fn r5_tried_later() {
    let turn = turn();
    let session = open(config());
    let primary = turn.fake.retain_primary(0).unwrap();
    turn.fake.set_current_context(primary).unwrap();
    let handle = turn.fake.create_stream(1).unwrap();
    let len = 10 * MIB;
    let (_s1, small) = subject(&common::disk(), 6, 4096);
    let (_s2, file) = subject(&memory(), 5, len);
    let buffer = session.buffer(0, len).unwrap();
    turn.fake.set_delay_us(300_000);
    let t = Transfer{file: small.clone(), offset: 0, memory: buffer.memory(), len: 4096, direction: Direction::Read, allow_short: false};
    let ticket = unsafe { session.submit_on(handle, vec![t]) }.unwrap();
    let r = fetch(&session, &file, 0, len).unwrap().1;
    println!("first: {r}");
    turn.fake.set_delay_us(0);
    let _ = ticket.wait();
    for _ in 0..3 { settle(); println!("later: {}", fetch(&session, &file, 0, len).unwrap().1); }
}

// one submission is always queued
#[test]
fn r6_always_gated() {
    let turn = turn();
    let session = open(config());
    let primary = turn.fake.retain_primary(0).unwrap();
    turn.fake.set_current_context(primary).unwrap();
    let handle = turn.fake.create_stream(1).unwrap();
    let len = 10 * MIB;
    let files: Vec<_> = (0..8).map(|k| subject(&memory(), k, len)).collect();
    fetch(&session, &files[0].1, 0, len).unwrap();
    session.probe_mapped(&files[0].1, &gpu(&session)).unwrap();
    let buffers: Vec<_> = (0..2).map(|_| session.buffer(0, len).unwrap()).collect();
    let mut last: Option<forebay_engine::Ticket> = None;
    for round in 0..24 {
        let file = &files[round % 8].1;
        let s = Instant::now();
        let t = Transfer{file: file.clone(), offset: 0, memory: buffers[round % 2].memory(), len, direction: Direction::Read, allow_short: false};
        let ticket = unsafe { session.submit_on(handle, vec![t]) }.unwrap();
        if round == 3 { raw(files[0].0.path()).write_all_at(&[1], 0).unwrap(); }
        if let Some(t) = last.replace(ticket) { let o = t.wait(); println!("{round}: {:?} {}", s.elapsed(), o.receipt); }
    }
    let _ = last.unwrap().wait();
    println!("registered {} pinned {}", turn.fake.registered_bytes(), pins(&session).process_bytes);
}

#[test]
fn r7_map_over() {
    let _turn = turn();
    let w = 64 * MIB;
    let session = open(forebay_config::Config { pin_budget: Some(2 * w as u64), ..config() });
    for _ in 0..4 {
    let (_s, file) = blank(&memory(), 4 * w);
    fetch(&session, &file, 0, 2 * w).unwrap();
    println!("pinned before {}", pins(&session).bytes >> 20);
    settle();
    let s = Instant::now();
    println!("{:?} {:?}", session.map(&file, &gpu(&session)).map(|_| ()).map_err(|e| e.message().to_owned()), s.elapsed());
    }
    let (s, file) = blank(&memory(), 2 * w);
    let mut map = session.map(&file, &gpu(&session)).unwrap();
    raw(s.path()).write_all_at(&[1], 0).unwrap();
    println!("refresh: {:?}", map.refresh().map_err(|e| e.message().to_owned()));
}

#[test]
fn r8_huge() {
    let _turn = turn();
    let session = open(config());
    let (s, _f) = blank(&memory(), 16 * MIB);
    raw(s.path()).set_len(1 << 60).unwrap();
    settle();
    let file = File::open(s.path()).unwrap();
    println!("{}", fetch(&session, &file, 0, 16 * MIB).unwrap().1);
}
#[test]
fn r9_18t() {
    let _turn = turn();
    let session = open(config());
    let (_s0, good) = subject(&memory(), 3, 16 * MIB);
    let (s, _f) = blank(&memory(), 64 * MIB);
    raw(s.path()).set_len(18 << 40).unwrap();
    settle();
    let file = File::open(s.path()).unwrap();
    println!("huge: {}", fetch(&session, &file, 0, 64 * MIB).unwrap().1);
    println!("other: {}", fetch(&session, &good, 0, 16 * MIB).unwrap().1);
}
#[test]
fn s1_fork_trim() {
    let _turn = turn();
    let session = open(config());
    let (_s, file) = subject(&memory(), 5, 10 * MIB);
    pin(&session, &file, 10 * MIB);
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let s = Instant::now();
        let n = session.trim();
        let e = s.elapsed();
        unsafe { libc::_exit(if n > 0 && e > Duration::from_secs(9) { 77 } else { 0 }) };
    }
    let mut st = 0;
    unsafe { libc::waitpid(pid, &mut st, 0) };
    println!("child exit {} (77: trim took 9 s and said it let go)", libc::WEXITSTATUS(st));
}
#[test]
fn s2_drop_gated() {
    let turn = turn();
    let other = open(config());
    let session = open(config());
    let primary = turn.fake.retain_primary(0).unwrap();
    turn.fake.set_current_context(primary).unwrap();
    let handle = turn.fake.create_stream(1).unwrap();
    let (_s, file) = subject(&memory(), 5, 10 * MIB);
    pin(&session, &file, 10 * MIB);
    let buffer = other.buffer(0, MIB).unwrap();
    let extra = turn.fake.create_stream(1).unwrap();
    let _ = extra;
    turn.fake.set_delay_us(4_000_000);
    let t = Transfer{file: file.clone(), offset: 0, memory: buffer.memory(), len: 4096, direction: Direction::Read, allow_short: false};
    let ticket = unsafe { other.submit_on(handle, vec![t]) }.unwrap();
    let s = Instant::now();
    drop(session);
    println!("drop of a session took {:?} while another session's submission was queued", s.elapsed());
    turn.fake.set_delay_us(0);
    let _ = ticket.wait();
}
// A batch of which one window is pinned and the other is staged, while the file is overwritten as a whole.
#[test]
fn s3_mix() {
    let _turn = turn();
    let w = 64 * MIB;
    let session = open(forebay_config::Config { pin_budget: Some(w as u64), ..config() });
    let (scratch, file) = blank(&memory(), 2 * w);
    fetch(&session, &file, 0, w).unwrap();
    let mut hits = 0;
    for round in 1..25u8 {
        settle();
        fetch(&session, &file, 0, w).unwrap();
        let path = scratch.path().to_owned();
        let (tx, rx) = std::sync::mpsc::channel::<()>();
        let h = std::thread::spawn(move || { rx.recv().unwrap(); std::thread::sleep(Duration::from_millis(round as u64 * 2));
            // one byte in each half, last first: state (old, new) never exists... first half first
            let f = raw(&path); f.write_all_at(&[round], (w + 100) as u64).unwrap(); f.write_all_at(&[round], 100).unwrap(); });
        let buffer = session.buffer(0, 2 * w).unwrap();
        tx.send(()).unwrap();
        let out = session.submit_read(&file, 0, buffer).unwrap().wait();
        let r = out.receipt.to_string();
        let b = out.buffer.to_vec().unwrap();
        let (a, z) = (b[100], b[w + 100]);
        if out.entries[0].is_ok() && a != z { hits += 1; println!("round {round}: first half {a}, second half {z}: {}", r.lines().next().unwrap()); }
        h.join().unwrap();
    }
    println!("mixtures: {hits}");
}
