//! An NFS client in user space: versions 3, 4.0, 4.1 and 4.2, over several connections to one server, into memory of the caller.
//!
//! It opens nothing on the server and keeps no state there but a session (4.1 and later). Reads and writes are started with a
//! range and memory, and answered by a function: there is no async runtime. Servers are not believed: lengths, counts and numbers
//! of replies are checked against what was asked, and memory is given back only when no byte can arrive in it any more.
//!
//! | module | what it has |
//! |---|---|
//! | [`xdr`], [`rpc`], [`v3`], [`v4`], [`io_call`], [`rdma`] | what travels: written and read without allocation |
//! | [`url`] | `nfs://server/export/path` |
//! | [`open`](mod@open) | from a URL to a file: ports, mountd, lookups, version, limits |
//! | `client`, `job` | requests cut into calls, and dealt to wires |
//! | `clients` | those of the process, kept for some seconds behind their last file |
//! | `mountd` | handles of exported directories, in version 3 |
//! | `wire` | a connection: calls under way, resent, parked |
//! | `addresses`, `looks`, `nics` | further addresses of a server: which are in use, when they are looked at, by which NIC |
//! | `same`, `opened` | what shows that they are its own, and the open files that are compared for it |
//! | `outage` | how long a server has been silent, and when what waits for it is given up |
//! | `place` | memory that a server writes to by a key that was made before |
//! | [`mount`] | the server, version and handle of a file on a mount of the kernel's |
//! | [`portmap`] | what a server's portmapper lists |
//! | [`probe`](mod@probe) | what a server can do, read and compared |

mod addresses;
mod client;
mod clients;
mod connect;
mod exchange;
pub mod handle;
pub mod io_call;
mod job;
mod looks;
pub mod mount;
mod mountd;
mod nics;
pub mod open;
mod opened;
mod options;
mod outage;
mod place;
pub mod portmap;
pub mod probe;
pub mod rdma;
pub mod rpc;
mod same;
mod session;
pub mod status;
pub mod url;
pub mod v3;
pub mod v4;
mod wire;
pub mod xdr;

pub use addresses::{LeftOut, MOST_FURTHER};
pub use client::{Client, Traffic};
pub use job::{Answer, CHANGED, Direction};
pub use open::{File, open};
pub use options::{Network, Options, Rdma};
pub use outage::{Silent, silent, stop_waiting};
pub use place::Registered;
pub use probe::probe;
pub use url::Url;

use forebay_sys::lock;
