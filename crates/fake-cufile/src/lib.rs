//! A test double of NVIDIA's libcufile.
//!
//! As a shared library it exports the functions that forebay's engine `libcufile` calls, over the software GPU of
//! `fake-cuda` and ordinary files: name it in `FOREBAY_VENDOR_LIBCUFILE`. As a Rust library it finds and controls that
//! shared library: see [`install`].
//!
//! It is strict where the real one is, and worse on demand. `FAKE_CUFILE` is a list of words, with commas:
//!
//! | word | what happens |
//! |---|---|
//! | `no-module` | opening fails with 5001 |
//! | `no-udev` | registering fails with 5027 |
//! | `hang-open`, `hang-register`, `hang-read`, `hang-write` | the call does not come back (before [`Fake::release`]) |
//! | `hang-large` | a read or write of 1 MiB or more does not come back |
//! | `short` | no call moves more than 1000 bytes |
//! | `fail-read=N`, `fail-write=N` | answers -1 with errno N (also codes of libcufile's) |
//! | `negative` | such failures answer -N instead |
//! | `wrong` | the first byte of each read is wrong |
//! | `nothing` | reads claim to have read, and move nothing |
//! | `too-much` | reads claim a byte more than was asked for |
//! | `nvidia-fs`, `p2pdma` | claims to work by them; the statistics say so |
//! | `version=N` | the version, as 1150 |
//! | `closes-stdin` | opening closes descriptor 0 |

mod api;
mod harness;
mod memory;
mod state;

pub use harness::{Fake, install, library_path};
