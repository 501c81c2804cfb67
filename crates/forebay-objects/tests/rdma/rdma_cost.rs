//! What a read costs by RDMA and by HTTP, over a fabric in the process: figures for the size from which RDMA is asked for.
//! `cargo test --release -p forebay-objects --test rdma -- rdma_cost --ignored --nocapture`

use std::time::Instant;

use fake_verbs::Fake;
use forebay_engine::File;

use crate::rdma_server::Named;

const MIB: usize = 1 << 20;

/// CPU time of this process so far, in µs.
fn cpu() -> f64 {
    // SAFETY: all-zero bytes are a valid rusage, which the call fills.
    let used: libc::rusage = unsafe {
        let mut used = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut used);
        used
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 * 1e6 + time.tv_usec as f64;
    seconds(used.ru_utime) + seconds(used.ru_stime)
}

/// Elapsed and CPU time of a read, in µs: of the client and of the server, which are one process.
fn cost(wish: &str, len: usize, times: usize) -> (f64, f64) {
    let server = Named::start(Fake::new(), wish);
    let mut bytes = vec![0; 16 * MIB];
    fake_s3::fill_pattern(7, 0, &mut bytes);
    server.s3().put("bucket", "key", bytes);
    if wish == "off" {
        // Without the server in between.
        server.name_s3();
    }
    let file = File::open("s3://bucket/key").unwrap();
    let mut memory = vec![0; len];
    // Behind the first bytes, which came when it was opened.
    let at = 512 << 10;
    file.read_host(&mut memory, at).unwrap();
    let (began, used) = (Instant::now(), cpu());
    for _ in 0..times {
        file.read_host(&mut memory, at).unwrap();
    }
    let times = times as f64;
    (began.elapsed().as_secs_f64() * 1e6 / times, (cpu() - used) / times)
}

#[test]
#[ignore = "figures"]
fn a_read_by_rdma_and_by_http() {
    println!("bytes: µs by RDMA (CPU), by HTTP (CPU)");
    for (len, times) in
        [(1, 3000), (16 << 10, 2000), (64 << 10, 1000), (256 << 10, 500), (MIB, 200), (8 * MIB, 30)]
    {
        let (rdma, http) = (cost("require", len, times), cost("off", len, times));
        println!("{len}: {:.0} ({:.0}), {:.0} ({:.0})", rdma.0, rdma.1, http.0, http.1);
    }
}
