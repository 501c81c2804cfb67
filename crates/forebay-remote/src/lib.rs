//! Shared by all sources on servers, of any protocol.
//!
//! | module | what it has |
//! |---|---|
//! | [`endpoint`] | from a server's name to a connection |
//! | [`stop`] | the end of all waiting for servers, when a program is interrupted |
//! | [`silence`] | how long a server has been silent, and when what waits for it is given up |
//! | [`retry`] | pauses between attempts, and when they are over |
//! | [`kept`] | clients of the process, kept for some seconds behind their last file |
//! | [`process`] | whether this is the process that made something, or a child of it; values that each process has for itself |
//! | [`namespace`] | which network a thread reaches servers by |

pub mod endpoint;
pub mod kept;
pub mod namespace;
pub mod process;
pub mod retry;
pub mod silence;
pub mod stop;
