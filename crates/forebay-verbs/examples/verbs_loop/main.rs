//! Connects an RDMA device to itself, moves bytes each way that forebay uses, compares them, and prints the
//! comparisons.
//!
//! `verbs_loop ADDRESS`     an address of an RDMA device; a soft one: `rdma link add rxe0 type rxe netdev eth0`
//! `verbs_loop fake`        the double, within this process
//! `verbs_loop register ADDRESS BYTES`   registers memory, or says why not
//! `verbs_loop hold ADDRESS`             connects, and says how the connection ended

mod steps;

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use forebay_error::{Error, ErrorKind, Result};
use forebay_verbs::{Access, Fabric, Route, Why, verbs};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            if let Some(why) = Why::of(&error) {
                eprintln!("why: {why:?}");
            }
            for hint in error.hints() {
                eprintln!("hint: {hint}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str]) -> Result<()> {
    let usage = || {
        Error::new(
            ErrorKind::InvalidInput,
            "verbs_loop ADDRESS | fake | register ADDRESS BYTES | hold ADDRESS",
        )
    };
    let address = |text: &str| text.parse::<IpAddr>().map_err(|_| usage());
    match arguments {
        ["fake"] => show(&fake_verbs::Fake::new(), IpAddr::from([10, 0, 0, 1])),
        [at] => show(&verbs()?, address(at)?),
        ["hold", at] => {
            steps::hold(&verbs()?, SocketAddr::new(address(at)?, 0), &mut |line| println!("{line}"))
        }
        ["register", at, bytes] => register(address(at)?, bytes.parse().map_err(|_| usage())?),
        _ => Err(usage()),
    }
}

fn show(fabric: &dyn Fabric, address: IpAddr) -> Result<()> {
    for device in fabric.devices()? {
        println!("device {}: {:?}", device.name, device.transport);
    }
    steps::all(fabric, SocketAddr::new(address, 0), &mut |line| println!("{line}"))
}

fn register(address: IpAddr, bytes: usize) -> Result<()> {
    let domain = verbs()?.open(&Route::to(SocketAddr::new(address, 1)).from(address))?;
    let buffer = steps::Buffer::new(&*domain, bytes, Access::WRITE, 0)?;
    println!("{} bytes registered on {}", buffer.region.memory().len, domain.device().name);
    buffer.region.release()
}
