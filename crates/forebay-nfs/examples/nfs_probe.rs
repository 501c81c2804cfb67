//! What a server does for a file, with the CPU time that it costs here: for owners of real network cards, to run and send back.
//! `cargo run --release -p forebay-nfs --example nfs_probe -- nfs://SERVER/EXPORT/FILE` (by RDMA, too, where there is a device)
use forebay_error::Result;
use forebay_nfs::{Options, Url, probe};

fn main() -> Result<()> {
    let Some(text) = std::env::args().nth(1) else {
        eprintln!("nfs_probe nfs://SERVER/EXPORT/FILE");
        std::process::exit(2);
    };
    let found = probe(&Url::parse(&text)?, &Options::default())?;
    for (version, told) in &found.versions {
        match told {
            Ok((limits, file)) => println!("{version}: {limits:?}, {} bytes", file.size),
            Err(error) => println!("{version}: {error}"),
        }
    }
    for rate in &found.rates {
        println!("tcp {rate}");
    }
    match &found.rdma {
        Some(Ok(rate)) => println!("rdma {rate}"),
        Some(Err(error)) => println!("rdma: {error:?}"),
        None => {}
    }
    Ok(())
}
