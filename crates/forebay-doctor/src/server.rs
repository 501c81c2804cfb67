//! Asks the server of an NFS mount without the kernel's client: does its export take calls from any port, does it take
//! RDMA.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::mpsc::channel;
use std::time::Duration;

use forebay_error::{Error, Result};
use forebay_nfs::mount::{self, KernelMount, MountTarget};
use forebay_nfs::{NfsOptions, RdmaOptions, open, portmap};
use forebay_verbs::Why;

use crate::exercise::{Answer, Hinted, ServerAnswers};

/// How long each question may take.
const LIMIT: Duration = Duration::from_secs(2);

/// How servers are asked.
#[derive(Clone, Debug)]
pub struct ServerRoutes {
    /// Where portmappers listen.
    pub portmap: u16,
    /// This machine's RDMA devices, or why there are none.
    pub rdma: Result<RdmaOptions>,
}

impl ServerRoutes {
    /// The default ports, and this machine's RDMA devices.
    pub fn of_machine() -> Self {
        Self { portmap: portmap::PORT, rdma: RdmaOptions::of_machine() }
    }
}

/// Asks the server of an open file on a mount of this network namespace; no question where `silent` has a reason.
pub fn ask_of_file(
    fd: BorrowedFd<'_>,
    mount_point: &str,
    routes: &ServerRoutes,
    silent: Option<Hinted>,
) -> ServerAnswers {
    let handle = handle(mount::untold_handle(fd));
    let mounted = match silent {
        Some(why) => Err(why),
        None => mount::of_file(fd, false).map_err(|error| Hinted::from(&error)),
    };
    match mounted {
        Ok(mounted) => ask(&mounted, mount_point, handle, routes),
        Err(why) => unasked(mount_point, handle, &why),
    }
}

/// Answers of a server that is not asked, for this reason.
pub fn unasked(mount_point: &str, handle: Answer, why: &Hinted) -> ServerAnswers {
    let text = format!("its server was not asked: {}", why.text);
    let unknown = Answer::Unknown(Hinted { text, fix: why.fix.clone() });
    ServerAnswers {
        mount_point: mount_point.to_owned(),
        server: None,
        handle,
        any_port: unknown.clone(),
        rdma: unknown,
    }
}

/// Asks the server of a file, with a time limit.
pub fn ask(mounted: &MountTarget, mount_point: &str, handle: Answer, routes: &ServerRoutes) -> ServerAnswers {
    let by_port = mounted.clone();
    let (mount, by) = (mounted.mount.clone(), routes.clone());
    ServerAnswers {
        mount_point: mount_point.to_owned(),
        server: Some(mounted.mount.address.to_string()),
        handle,
        any_port: in_time(move || any_port(&by_port)),
        rdma: in_time(move || rdma(&mount, &by)),
    }
}

fn in_time(ask: impl FnOnce() -> Answer + Send + 'static) -> Answer {
    let (tell, told) = channel();
    std::thread::spawn(move || {
        // The receiver is gone if it took too long.
        let _ = tell.send(ask());
    });
    told.recv_timeout(LIMIT).unwrap_or_else(|_| {
        let text = format!("its server did not answer in {} seconds", LIMIT.as_secs());
        Answer::Unknown(Hinted::new(text).fix("check the server and the network path to it: rpcinfo SERVER"))
    })
}

/// Whether the kernel gives a file's handle, or why not.
fn handle(untold: Result<Option<String>>) -> Answer {
    match untold {
        Ok(None) => {
            Answer::Yes(Hinted::new("the kernel gives handles of its files: requests to the server use them"))
        }
        Ok(Some(why)) => {
            let said = Hinted::new(format!("{why}: requests to the server use paths, if any"));
            let is_old = why.contains("version 4.0");
            Answer::No(if is_old {
                said.fix("mount with vers=3, vers=4.1 or vers=4.2 (as root)")
            } else {
                said
            })
        }
        Err(error) => Answer::Unknown(Hinted::from(&error)),
    }
}

fn any_port(mounted: &MountTarget) -> Answer {
    let options = NfsOptions { connections: 1, ..NfsOptions::default() }.within(LIMIT);
    match forebay_nfs::takes_any_port(mounted, &options) {
        Ok(true) => Answer::Yes(Hinted::new("the export takes calls from any port (insecure)")),
        Ok(false) => {
            let text = "the export takes calls from ports below 1024 only: over TCP only root can read there with forebay's own client";
            let fix = "on the server: add insecure to the export's options in /etc/exports, then: sudo exportfs -ra";
            Answer::No(Hinted::new(text).fix(fix))
        }
        Err(error) => {
            let text = format!("whether the export takes calls from any port is not known: {error}");
            let fix =
                error.hints().first().cloned().unwrap_or_else(|| {
                    "on the server: sudo exportfs -v (insecure: from any port)".to_owned()
                });
            Answer::Unknown(Hinted::new(text).fix(fix))
        }
    }
}

fn rdma(mount: &KernelMount, routes: &ServerRoutes) -> Answer {
    if mount.transport.starts_with("rdma") {
        let text = format!("the server takes RDMA on port {}: it is mounted so", mount.port);
        return Answer::Yes(Hinted::new(text));
    }
    // Finds the address and connects, each within the time limit.
    let tried = routes.rdma.as_ref().map_err(Error::clone);
    let tried = tried.and_then(|rdma| open::takes_rdma(rdma, mount.address, LIMIT / 3));
    match tried {
        Ok(at) => {
            Answer::Yes(Hinted::new(format!("the server takes connections over RDMA on port {}", at.port())))
        }
        Err(error) if Why::of(&error) == Some(Why::Rejected) => Answer::No(not_there("refuses", &error)),
        Err(error) if Why::of(&error) == Some(Why::Unreachable) => {
            Answer::No(not_there("does not answer to", &error))
        }
        Err(error) => listed(mount.address, routes.portmap, &error),
    }
}

fn not_there(what: &str, error: &Error) -> Hinted {
    Hinted::new(format!("the server {what} connections over RDMA: {error}")).fix(
        "on the server, if it has an RDMA device (rdma link show): echo rdma 20049 | sudo tee /proc/fs/nfsd/portlist",
    )
}

/// By the portmapper's list, where no connection could be tried. Some servers that take RDMA are not in it.
fn listed(address: IpAddr, port: u16, untried: &Error) -> Answer {
    let found = portmap::services(SocketAddr::new(address, port), LIMIT / 2);
    match found.map(|services| portmap::rdma_port(&services, address)) {
        Ok(Some(port)) => Answer::Yes(Hinted::new(format!(
            "the server's portmapper lists NFS over RDMA on port {port}; not tried from here: {untried}"
        ))),
        Ok(None) => Answer::Unknown(unknown(
            "its portmapper lists no NFS over RDMA, which proves nothing (Linux's server is not listed)",
            untried,
        )),
        Err(error) => Answer::Unknown(unknown(&error.to_string(), untried)),
    }
}

fn unknown(why: &str, untried: &Error) -> Hinted {
    let text = format!("whether the server takes RDMA is not known: {why}; not tried from here: {untried}");
    Hinted::new(text).fix("on the server: cat /proc/fs/nfsd/portlist (rdma 20049)")
}
