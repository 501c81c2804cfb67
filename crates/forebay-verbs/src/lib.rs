//! RDMA: connections, registered memory, memory windows, completions.
//!
//! [`Fabric`] and what it gives is what protocols over RDMA are written against; [`verbs()`] has the real one: libibverbs
//! and librdmacm, loaded when first needed. `fake-verbs` is the same in one process, without a device, and refuses what
//! hardware would. Connections are made by rdma_cm ([`Domain::connect`]) or paired by messages of the program's own
//! ([`Domain::end`]). Why something is not to be had: [`Why`].
//!
//! How a protocol uses it, who owns what, and which thread may do what: the crate's README.

mod completion;
mod fabric;
mod memory;
mod pages;
mod pairing;
mod registered;
mod verbs;
mod why;

pub use completion::{Completion, Failure, Kind, Message};
pub use fabric::{
    Connection, Device, DeviceLimits, Domain, Down, Fabric, Incoming, Listener, Options, Post, Route,
    STOP_SLICE, Stop, Transport, check_length,
};
pub use forebay_sys::{DeviceRange, HostRange};
pub use memory::{Access, Handle, Local, Memory, Region, Remote, Window};
pub use pages::Pages;
pub use pairing::{QueueEnd, UnpairedEnd, gid_of, random_first};
pub use registered::RegisteredMemory;
pub use verbs::{Verbs, verbs};
pub use why::Why;
