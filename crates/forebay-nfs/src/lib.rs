//! An NFS client in user space: versions 3, 4.0, 4.1 and 4.2, over several connections to one server, into memory of the caller.
//!
//! It keeps no file open on the server, and no state there but a session (4.1 and later) or, of who makes files, a client id (4.0). Reads and writes are started with a
//! range and memory, and answered by a function: there is no async runtime. Servers are not believed: lengths, counts
//! and numbers of replies are checked against the call, and memory is given back only when no byte can arrive in it any
//! more.
//!
//! | folder | what it has |
//! |---|---|
//! | `protocol` | what travels, written and read without allocation: [`xdr`], [`rpc`], [`v3`], [`v4`], [`io_call`], [`rdma`] |
//! | `network` | connections and calls under way on them (`wire`), requests cut into calls (`job`), a server's session and its |
//! | | further addresses |
//! | `client` | from a URL to a file ([`url`], [`open`](mod@open)), clients of the process, kept for some seconds behind |
//! | | their last file; the names in a directory ([`folder`]); what a server has ([`portmap`]) and can do ([`probe`](mod@probe)) |
//! | `source` | a file of a server as a source of engines |
//! | `mounts` | the server, version and handle of a file on a mount of the kernel's ([`mount`]), and its bytes past the kernel |

mod client;
mod mounts;
mod network;
mod protocol;
mod source;

pub use client::file::NfsFile;
pub use client::make::{NewNfsFile, make};
pub use client::nfs_client::{NfsClient, ServerTraffic};
pub use client::open::open;
pub use client::probe::probe;
pub use client::url::NfsUrl;
pub use client::{folder, open, portmap, probe, url};
pub use mounts::facts::MountFacts;
pub use mounts::mount;
pub use mounts::mounted_file::{MountedFile, Mounts};
pub use mounts::open::{of_mount, takes_any_port};
pub use network::addresses::{LeftOutAddress, MOST_FURTHER};
pub use network::job::{Answer, CHANGED, Direction};
pub use network::options::{NfsOptions, RdmaOptions};
pub use protocol::{handle, io_call, new_file, rdma, read_dir, rpc, status, v3, v4, xdr};
pub use source::NfsSource;

use forebay_sys::lock;

/// `nfs://` URLs are opened by this client from now on, wherever the program takes a path, and engines reach the servers of mounted
/// files by it ([`Mounts`]). Programs call it once, when they start.
pub fn register() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        forebay_source::register(std::sync::Arc::new(source::NfsOpener));
        forebay_source::register_beside(std::sync::Arc::new(Mounts));
    });
}
