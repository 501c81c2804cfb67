//! Moves bytes between storage and GPU memory on the shortest path the machine allows, and says which path each byte
//! took and why.
//!
//! # In ten lines
//!
//! Open a [`Session`], open a [`File`], get a [`Buffer`] on a device, read. Device 0 is the first GPU; on a machine
//! without a GPU it is host memory, so that the same program runs everywhere:
//!
//! ```
//! use forebay::prelude::*;
//!
//! # fn main() -> Result<(), Error> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("weights");
//! # std::fs::write(&path, b"what the model has learned").unwrap();
//! let session = Session::open()?;
//! let file = File::open(&path)?;
//! let mut weights = session.buffer(0, file.len()? as usize)?;
//!
//! let receipt = session.read(&file, 0, &mut weights)?;
//!
//! assert_eq!(receipt.bytes(), 26);
//! println!("{receipt}"); // 26 bytes by staged in 0.061 ms; 26 page cache
//! # assert_eq!(weights.to_vec()?, b"what the model has learned");
//! # Ok(())
//! # }
//! ```
//!
//! [`Session::open`] gives the process's one session, with the options of the environment (see [`config::VARIABLES`]).
//! It is cheap: no CUDA context is created and no thread started before the first transfer needs them. A session is
//! shared by cloning it or by reference; all its methods may be called from any thread.
//!
//! # Memory
//!
//! A [`Buffer`] owns memory of one device. [`Session::buffer`] takes a device by its index, [`Session::host_buffer`]
//! takes host memory in any case. Host memory can be looked at in place; memory of a GPU is copied out:
//!
//! ```
//! use forebay::prelude::*;
//!
//! # fn main() -> Result<(), Error> {
//! let session = Session::open()?;
//! match session.devices().gpus.first() {
//!     Some(gpu) => println!("device 0 is {}", gpu.info().name),
//!     None => println!("device 0 is host memory"),
//! }
//!
//! let mut on_device = session.buffer(0, 4)?;
//! on_device.copy_from_slice(b"tide")?;
//! assert_eq!(on_device.to_vec()?, b"tide");
//!
//! let mut on_host = session.host_buffer(4)?;
//! on_host.as_mut_slice().unwrap().copy_from_slice(b"weir");
//! assert_eq!(on_host.as_slice().unwrap(), b"weir");
//!
//! // Any other index is a GPU that must exist. The error's hints tell which there are.
//! let error = session.buffer(4711, 4).unwrap_err();
//! assert_eq!(error.kind(), ErrorKind::NotFound);
//! assert!(!error.hints().is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! # Reading
//!
//! [`Session::read`] fills a whole buffer, [`Session::read_into`] a part of it. Offsets, lengths and addresses need no
//! alignment. A file that ends before the buffer is full is an error, not a smaller success:
//!
//! ```
//! use forebay::prelude::*;
//!
//! # fn main() -> Result<(), Error> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("data");
//! std::fs::write(&path, b"0123456789").unwrap();
//! let session = Session::open()?;
//! let file = File::open(&path)?;
//! let mut buffer = session.buffer(0, 8)?;
//! buffer.copy_from_slice(b"........")?;
//!
//! session.read_into(&file, 3, &mut buffer, 2..6)?;
//! assert_eq!(buffer.to_vec()?, b"..3456..");
//!
//! let error = session.read(&file, 5, &mut buffer).unwrap_err();
//! assert_eq!(error.kind(), ErrorKind::ShortRead);
//! println!("{error}"); // the file ended before the requested number of bytes (got=5, wanted=8, …)
//! for hint in error.hints() {
//!     println!("hint: {hint}");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Every [`Error`] has a [`kind`](Error::kind) by meaning, a message with context, and [`hints`](Error::hints): what to
//! type.
//!
//! # The receipt
//!
//! A [`Receipt`] says what really happened: the engine, the bytes by the way they took ([`Moved`]), the better engines
//! that were refused and why, why the chosen one was slower than it could be, the wall time.
//!
//! ```
//! use forebay::prelude::*;
//!
//! # fn main() -> Result<(), Error> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("data");
//! std::fs::write(&path, vec![7; 100_000]).unwrap();
//! let session = Session::open()?;
//! let file = File::open(&path)?;
//! let mut buffer = session.host_buffer(100_000)?;
//! let receipt = session.read(&file, 0, &mut buffer)?;
//!
//! // Straight into host memory, out of the page cache: the file has just been written.
//! assert_eq!(receipt.engine(), EngineKind::Host);
//! assert_eq!(receipt.moved[Way::Cached], 100_000);
//! assert_eq!(receipt.moved.total(), receipt.bytes());
//! for refusal in &receipt.election.refused {
//!     println!("not {}: {}", refusal.engine, refusal.reason);
//! }
//! for note in &receipt.election.notes {
//!     println!("note: {}", note.text);
//! }
//!
//! // Totals for each device that was used.
//! for engine in session.stats() {
//!     println!("{}: {} bytes in {} transfers", engine.device, engine.moved.total(), engine.requests);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Writing
//!
//! [`File::options`] opens for writing. [`Session::write`] returns when the kernel has the bytes; [`File::sync`] when
//! they are durable.
//!
//! ```
//! use forebay::prelude::*;
//!
//! # fn main() -> Result<(), Error> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("checkpoint");
//! let session = Session::open()?;
//! let file = File::options().write(true).create(true).truncate(true).open(&path)?;
//! let mut buffer = session.buffer(0, 10)?;
//! buffer.copy_from_slice(b"checkpoint")?;
//!
//! session.write(&file, 0, &buffer)?;
//! session.write_from(&file, 10, &buffer, 5..10)?;
//! file.sync()?;
//! assert_eq!(std::fs::read(&path).unwrap(), b"checkpointpoint");
//! # Ok(())
//! # }
//! ```
//!
//! # Many pieces
//!
//! [`Session::read_batch`] reads many pieces of a file into one buffer at once: far faster than one by one when they
//! are small. Each piece has its own result; a bad one does not harm the others. With a [`Ticket`] the buffer is the
//! ticket's until the outcome gives it back:
//!
//! ```
//! use forebay::prelude::*;
//!
//! # fn main() -> Result<(), Error> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("records");
//! std::fs::write(&path, b"aaaabbbbccccdddd").unwrap();
//! let session = Session::open()?;
//! let file = File::open(&path)?;
//!
//! let pieces = [
//!     ReadPiece { offset: 12, range: 0..4 },
//!     ReadPiece { offset: 4, range: 4..8 },
//!     ReadPiece { offset: 14, range: 8..12 }, // runs over the end
//! ];
//! let ticket = session.read_batch(&file, &pieces, session.buffer(0, 12)?)?;
//! let outcome = ticket.wait();
//!
//! assert_eq!(*outcome.entries[0].as_ref().unwrap(), 4);
//! assert_eq!(*outcome.entries[1].as_ref().unwrap(), 4);
//! assert_eq!(outcome.entries[2].as_ref().unwrap_err().kind(), ErrorKind::ShortRead);
//! assert_eq!(outcome.buffer.to_vec()?[..8], *b"ddddbbbb");
//! # Ok(())
//! # }
//! ```
//!
//! # Scattered pieces
//!
//! Pieces need not be of one size, nor lie in the file's order: a table of (offset, length) as many formats have it
//! becomes one batch whose pieces lie side by side in memory.
//!
//! ```
//! use forebay::prelude::*;
//!
//! # fn main() -> Result<(), Error> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("tensors");
//! std::fs::write(&path, b"header--bias-weights-weights-scale").unwrap();
//! let table = [(8, 4), (13, 15), (29, 5)];
//!
//! let mut end = 0;
//! let pieces: Vec<_> = table
//!     .iter()
//!     .map(|&(offset, len)| {
//!         let start = end;
//!         end += len;
//!         ReadPiece { offset, range: start..end }
//!     })
//!     .collect();
//!
//! let session = Session::open()?;
//! let ticket = session.read_batch(&File::open(&path)?, &pieces, session.buffer(0, end)?)?;
//! let (receipt, tensors) = ticket.wait().into_result()?; // the first bad entry's error, if there is one
//! assert_eq!(receipt.bytes(), 24);
//! assert_eq!(tensors.to_vec()?, b"biasweights-weightsscale");
//! # Ok(())
//! # }
//! ```
//!
//! # Tickets
//!
//! [`Session::submit_read`] and [`Session::submit_write`] start a transfer and return a [`Ticket`]. It owns the buffer,
//! so that safe code can neither free it nor look at it half-written. A ticket may be sent to another thread, waited
//! for, polled, or awaited; dropping it waits.
//!
//! ```
//! use std::future::Future;
//! use std::pin::pin;
//! use std::sync::Arc;
//! use std::task::{Context, Poll, Wake};
//! use std::thread::Thread;
//! use std::time::Duration;
//!
//! use forebay::prelude::*;
//!
//! /// The smallest executor there is. A program with one of its own (tokio, smol, …) just writes `ticket.await`.
//! fn block_on<F: Future>(future: F) -> F::Output {
//!     struct Unpark(Thread);
//!     impl Wake for Unpark {
//!         fn wake(self: Arc<Self>) {
//!             self.0.unpark();
//!         }
//!     }
//!     let waker = Arc::new(Unpark(std::thread::current())).into();
//!     let mut future = pin!(future);
//!     loop {
//!         match future.as_mut().poll(&mut Context::from_waker(&waker)) {
//!             Poll::Ready(output) => return output,
//!             Poll::Pending => std::thread::park(),
//!         }
//!     }
//! }
//!
//! async fn copy(session: &Session, from: &File, to: &File) -> Result<u64, Error> {
//!     let buffer = session.buffer(0, from.len()? as usize)?;
//!     let (_, buffer) = session.submit_read(from, 0, buffer)?.await.into_result()?;
//!     let (receipt, _) = session.submit_write(to, 0, buffer)?.await.into_result()?;
//!     Ok(receipt.bytes())
//! }
//!
//! # fn main() -> Result<(), Error> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let (path, copy_path) = (folder.path().join("a"), folder.path().join("b"));
//! std::fs::write(&path, vec![9; 2_000_000]).unwrap();
//! let session = Session::open()?;
//! let from = File::open(&path)?;
//! let to = File::options().write(true).create(true).open(&copy_path)?;
//! assert_eq!(block_on(copy(&session, &from, &to))?, 2_000_000);
//! assert_eq!(std::fs::read(&copy_path).unwrap(), std::fs::read(&path).unwrap());
//!
//! // Without a future: several in flight, then wait.
//! let tickets = [0, 1_000_000]
//!     .map(|offset| session.submit_read(&from, offset, session.host_buffer(1_000_000).unwrap()).unwrap());
//! while !tickets.iter().all(|ticket| ticket.wait_timeout(Duration::from_millis(100))) {
//!     println!("still reading");
//! }
//! for ticket in tickets {
//!     let (_, half) = ticket.wait().into_result()?;
//!     assert!(half.as_slice().unwrap().iter().all(|byte| *byte == 9));
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Only the engines that you allow
//!
//! forebay elects the best [engine](EngineKind) that works and goes on with the next best where one does not. To allow
//! only some engines, use `strict` (or `FOREBAY_STRICT`): a transfer that would use another one fails before its first
//! byte, with the reasons as hints.
//!
//! ```
//! use forebay::prelude::*;
//!
//! # fn main() -> Result<(), Error> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("data");
//! std::fs::write(&path, b"payload").unwrap();
//! // A session of its own, beside the process's: for options that differ, for tests and benchmarks.
//! let session = Session::with_config(Config { strict: vec!["p2p".to_owned()], ..Config::default() })?;
//! let mut buffer = session.buffer(0, 7)?;
//!
//! match session.read(&File::open(&path)?, 0, &mut buffer) {
//!     Ok(receipt) => assert_eq!(receipt.engine(), EngineKind::P2p),
//!     Err(error) => {
//!         assert_eq!(error.kind(), ErrorKind::Strict);
//!         println!("{error}"); // strict allows p2p only, but this transfer would use host
//!     }
//! }
//! // Asked beforehand, without a transfer:
//! let elected = Session::open()?.elect(&session.device(0)?)?;
//! println!("{} would move it", elected.engine);
//! # Ok(())
//! # }
//! ```
//!
//! # The page cache
//!
//! By default ([`CachePolicy::Auto`](config::CachePolicy::Auto)) warm bytes come from the page cache and cold ones pass
//! it by (O_DIRECT), so that reading a large file once does not evict other pages.
//! [`Keep`](config::CachePolicy::Keep) leaves the bytes in the cache for the next reader,
//! [`Bypass`](config::CachePolicy::Bypass) never uses it for aligned parts. The policy is an option of the session,
//! and of a file:
//!
//! ```
//! use forebay::prelude::*;
//!
//! # fn main() -> Result<(), Error> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("data");
//! std::fs::write(&path, vec![1; 1 << 20]).unwrap();
//! let session = Session::open()?;
//! let mut buffer = session.buffer(0, 1 << 20)?;
//!
//! let file = File::options().cache(CachePolicy::Keep).open(&path)?;
//! file.drop_cache()?;
//! session.read(&file, 0, &mut buffer)?; // cold: from the disk, through the cache
//! let again = session.read(&file, 0, &mut buffer)?;
//! assert_eq!(again.moved[Way::Cached], 1 << 20);
//! assert!(file.residency(0, 1 << 20)?.fraction() > 0.99);
//!
//! let file = File::options().cache(CachePolicy::Bypass).open(&path)?;
//! let receipt = session.read(&file, 0, &mut buffer)?;
//! match file.direct_refused() {
//!     None => assert_eq!(receipt.moved[Way::Direct], 1 << 20),
//!     Some(reason) => println!("this file has no O_DIRECT: {reason}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Warm files
//!
//! The CPU need not copy bytes that are in the page cache: GPUs read them in place, where driver and file system allow
//! it. [`Session::read`] does so once registering the pages pays, and the receipt says so ([`EngineKind::Mapped`],
//! [`Way::Mapped`]). A [`Map`] gives the file's pages to kernels, and gathers pieces of it by the million, which is
//! about 100 times faster than a read for each.
//!
//! ```
//! use forebay::prelude::*;
//! use forebay::{Map, Offsets};
//!
//! # fn main() -> Result<(), Error> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("data");
//! std::fs::write(&path, vec![7; 1 << 20]).unwrap();
//! let session = Session::open()?;
//! let file = File::open(&path)?;
//!
//! match session.map(&file, &session.device(0)?) {
//!     Ok(map) => {
//!         // For kernels of your own: map.address(), readable for map.len() bytes as long as the map lives.
//!         let mut rows = session.buffer(0, 3 * 512)?;
//!         let receipt = map.gather(Offsets::Host(&[0, 4096, 77]), 512, &mut rows)?;
//!         assert_eq!(receipt.moved[Way::Mapped], 3 * 512);
//!         map.check()?; // the file is still the mapped one: so were the bytes
//!     }
//!     // No GPU, a driver or file system that does not allow it, no budget: the error says which.
//!     Err(error) => println!("{error}: {:?}", error.hints()),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Memory of other libraries
//!
//! A pointer of PyTorch's or CuPy's, or of a C program, is moved by the `unsafe` half of the session: a [`Transfer`]
//! names a range of a file and a range of [`Memory`], [`Session::locate`] finds out what an address points to.
//! [`Session::run`] waits, [`Session::submit`] and [`Session::submit_batch`] return a ticket, and
//! [`Session::submit_on`] takes its place in the order of a CUDA stream.
//!
//! ```
//! use forebay::prelude::*;
//! use forebay::Transfer;
//!
//! # fn main() -> Result<(), Error> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("data");
//! std::fs::write(&path, b"somewhere over there").unwrap();
//! let session = Session::open()?;
//! let file = File::open(&path)?;
//! let mut theirs = [0u8; 30];
//!
//! let transfer = Transfer {
//!     file: file.clone(),
//!     offset: 10,
//!     memory: session.locate(theirs.as_mut_ptr() as u64)?,
//!     len: theirs.len(),
//!     direction: Direction::Read,
//!     allow_short: true, // what is there from offset 10 on, up to 30 bytes
//! };
//! // SAFETY: `theirs` lives, and nobody else uses it, until `run` returns.
//! let receipt = unsafe { session.run(&transfer) }?;
//! let good = receipt.bytes() as usize; // Without a gap: nothing behind the first missing byte counts.
//! assert_eq!(good, 10);
//! assert_eq!(&theirs[..good], b"over there");
//! # Ok(())
//! # }
//! ```
//!
//! # Where to go on
//!
//! - [`source`]: sources that are not files, and faults to test against. [`nfs::register`]: from then on `nfs://` URLs are files.
//! - [`config`]: every option and its variable.
//! - [`gpu`]: devices, streams and events beneath.
//! - The command `forebay check` shows which engines work on a machine, which do not, and the fixes.

pub mod prelude;

pub use forebay_config as config;
pub use forebay_engine::*;
pub use forebay_error::{Error, ErrorKind, Result};
pub use forebay_gpu as gpu;
pub use forebay_libcufile as libcufile;
pub use forebay_nfs as nfs;
pub use forebay_objects as objects;
pub use forebay_source::{Opener, near_miss, opener_of};
