//! A test double of RDMA: [`Fake`] is a [`forebay_verbs::Fabric`] within one process.
//! The fake enforces the rules of hardware: keys, bounds, rights, domains and lifetimes, for the peer's memory and for
//! this side's. A refused operation breaks the connection, as on real hardware. Operations are carried out on the
//! thread that posts them; only late ones have a thread of their own. [`Fake::inject`] has faults, [`Fake::journal`] a
//! record of operations.
//!
//! ```
//! use std::time::Duration;
//!
//! use fake_verbs::Fake;
//! use forebay_verbs::{Completion, Fabric, Options, Post, Route};
//!
//! # fn main() -> forebay_error::Result<()> {
//! let fake = Fake::new();
//! let mut listener = fake.listen("10.0.0.1:20049".parse().unwrap())?;
//! let server = std::thread::spawn(move || -> forebay_error::Result<_> {
//!     let incoming = listener.next(Duration::from_secs(5))?.expect("a peer");
//!     let mut connection = incoming.accept(&Options::default())?;
//!     connection.send(1, b"hello", Post::QUIET)?;
//!     Ok(connection)
//! });
//! let domain = fake.open(&Route::to("10.0.0.1:20049".parse().unwrap()))?;
//! let mut connection = domain.connect("10.0.0.1:20049".parse().unwrap(), &Options::default())?;
//! let mut completions = Vec::new();
//! connection.wait(&mut completions, Duration::from_secs(5))?;
//! let Some(Completion::Received(message)) = completions.pop() else { panic!("no message") };
//! assert_eq!(connection.bytes(&message)?, b"hello");
//! # drop(server.join());
//! # Ok(())
//! # }
//! ```

mod connection;
mod domain;
mod end;
mod fabric;
mod faults;
mod listen;
mod machine;
mod memory;
mod network;
mod op;
mod queue;
mod table;
mod unpaired;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use fabric::Fake;
pub use faults::{Counts, Entry, Fault, Side, What};
pub use machine::FakeDevice;
pub use table::Refusal;

/// What a test that panicked held is looked at all the same.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
