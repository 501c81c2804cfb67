//! RDMA to servers of objects: their answers, on machines that are written down.

use forebay_doctor::finding::Severity::{Blocks, Note, Slower};
use forebay_error::{Error, ErrorKind};
use forebay_objects::{ArrivedBytes, ObjectRdma, ObjectUrl};
use forebay_verbs::Why;

use super::*;
use crate::trees::{CARD, PORT};

/// An object's server, which speaks these of both dialects.
fn server(spoken: &[&str], arrived: Result<&'static str, Error>) -> ObjectRdma {
    let no = || Error::new(ErrorKind::Unsupported, "the server does not take RDMA").with("status", 405);
    let arrived = arrived.map(|dialect| ArrivedBytes { dialect, bytes: 65536, nic: "mlx5_0".to_owned() });
    // A machine without a way to the server has not asked it.
    let is_asked = arrived.as_ref().err().is_none_or(|error| Why::of(error).is_none());
    let dialects = ["rc1", "hipobj-rc-v2"].into_iter().filter(|_| is_asked);
    ObjectRdma {
        url: ObjectUrl::parse("s3://bucket/key".as_ref()).unwrap(),
        server: "10.0.0.1:9000".to_owned(),
        dialects: dialects
            .map(|name| (name, if spoken.contains(&name) { Ok(()) } else { Err(no()) }))
            .collect(),
        arrived,
        is_required: false,
    }
}

fn looked(rdma: ObjectRdma) -> DoctorOptions {
    DoctorOptions { rdma: vec![rdma], ..DoctorOptions::default() }
}

pub(super) fn good() -> DoctorOptions {
    looked(server(&["rc1"], Ok("rc1")))
}

fn failed(why: Why, text: &str) -> DoctorOptions {
    looked(server(&[], Err(why.error(text))))
}

fn required(options: DoctorOptions) -> DoctorOptions {
    let rdma = options.rdma.into_iter().map(|one| ObjectRdma { is_required: true, ..one }).collect();
    DoctorOptions { rdma, ..options }
}

fn soft(t: &mut Tree) -> &mut Tree {
    t.without("/sys/class/infiniband/mlx5_0/device").file("/sys/class/infiniband/mlx5_0/parent", "ens1\n")
}

/// What no machine is blamed for.
pub(super) const HEALTHY: &[HealthyObject] = &[
    ("bytes of an object came by RDMA", |_| good()),
    ("a machine without a NIC reads objects by HTTP", |t| {
        t.without("/sys/class/infiniband");
        failed(Why::NoDevice, "this machine has no RDMA device")
    }),
];

pub(super) const CASES: &[Case] = &[
    case(
        "s3-rdma-server",
        "a server that does not know the headers",
        Note,
        "10.0.0.1:9000, hipobj-rc-v2: the server does not take RDMA (status=405)",
        "forebay serve s3 DIR --rdma",
        |_| looked(server(&[], Err(Error::new(ErrorKind::Unsupported, "the server does not take RDMA")))),
    ),
    case("s3-rdma-server", "required", Blocks, "10.0.0.1:9000, rc1: ", "FOREBAY_S3_RDMA=off", |_| {
        required(looked(server(&[], Err(Error::new(ErrorKind::Unsupported, "none")))))
    }),
    case("s3-rdma-server", "behind a proxy", Note, "a proxy is before the server", "", |_| {
        let error = Error::new(ErrorKind::Unsupported, "a proxy is before the server");
        looked(ObjectRdma { dialects: Vec::new(), ..server(&[], Err(error)) })
    }),
    case(
        "s3-rdma",
        "bytes do not arrive",
        Slower,
        "/sys/class/net/ens1/mtu: 9000",
        "one MTU at both ends (here 9000)",
        |_| {
            let text = "the server says that bytes moved, and they did not arrive in host memory";
            looked(server(&["hipobj-rc-v2"], Err(Error::new(ErrorKind::Corrupt, text))))
        },
    ),
    case(
        "s3-rdma-device",
        "rdma_ucm is not loaded",
        Slower,
        "/sys/class/misc/rdma_cm: not there",
        "sudo modprobe rdma_ucm",
        |t| {
            t.without("/sys/class/misc/rdma_cm");
            failed(Why::NoDevice, "cannot open the connection manager")
        },
    ),
    case(
        "s3-rdma-device",
        "a container without device files",
        Slower,
        "/dev/infiniband/*: not there",
        "--device /dev/infiniband",
        |t| {
            t.without("/dev/infiniband");
            failed(Why::NoDevice, "cannot open the connection manager")
        },
    ),
    case("s3-rdma-device", "no library", Slower, "state: 4: ACTIVE", "apt install libibverbs1", |_| {
        let error = Why::NoLibrary.error("cannot load the RDMA library").hint("sudo apt install libibverbs1");
        looked(server(&[], Err(error)))
    }),
    case(
        "s3-rdma-device",
        "required, and the card's module is missing",
        Blocks,
        "/sys/class/infiniband/*: not there",
        "sudo modprobe mlx5_ib",
        |t| {
            t.without("/sys/class/infiniband");
            required(failed(Why::NoDevice, "this machine has no RDMA device"))
        },
    ),
    case("s3-rdma-device", "required, and no card", Blocks, "not there", "rdma link add rxe0", |t| {
        t.without("/sys/class/infiniband").without(&format!("/sys/bus/pci/devices/{CARD}"));
        required(failed(Why::NoDevice, "this machine has no RDMA device"))
    }),
    case(
        "s3-rdma-route",
        "the server is behind another interface",
        Note,
        "interface ens1, GIDs fe80:",
        "ip route get 10.0.0.1",
        |_| failed(Why::NoRoute, "cannot open an RDMA device: none is on the route"),
    ),
    case("s3-rdma-route", "the link is down", Note, "state 1: DOWN", "sudo ip link set ens1 up", |t| {
        t.file(&format!("{PORT}/state"), "1: DOWN\n");
        failed(Why::NoRoute, "cannot open an RDMA device: none is on the route")
    }),
    case(
        "s3-rdma-route",
        "the NIC has no address",
        Note,
        "GIDs fe80:0000:0000:0000:0000:00ff:fe00:0001",
        "sudo ip address add ADDRESS/24 dev ens1",
        |t| {
            t.without(&format!("{PORT}/gids/1"));
            failed(Why::NoRoute, "cannot pair in band: the RDMA device's port has no GID")
        },
    ),
    case(
        "s3-rdma-memlock",
        "registering fails",
        Slower,
        "Max locked memory: 8388608 bytes",
        "ulimit -l",
        |t| {
            t.replace(
                "/proc/self/limits",
                "unlimited            unlimited",
                "8388608              8388608  ",
            );
            failed(Why::Memlock, "cannot register memory")
        },
    ),
    case("s3-rdma-memlock", "bytes came, and few fit", Slower, "8388608 bytes", "memlock=-1", |t| {
        t.replace("/proc/self/limits", "unlimited            unlimited", "8388608              8388608  ");
        good()
    }),
    case("s3-rdma-gpu", "a soft NIC", Note, "/sys/class/infiniband/mlx5_0/device: not there", "", |t| {
        soft(t);
        good()
    }),
    case("mtu", "of the NIC to a server of objects", Note, "mtu: 1500", "mtu 9000", |t| {
        t.file("/sys/class/net/ens1/mtu", "1500\n");
        good()
    }),
];
