//! A test double of the CUDA driver.
//!
//! As a shared library it exports the driver functions that forebay calls, over host memory: name it in
//! `FOREBAY_LIBCUDA`, or copy it to `libcuda.so.1` on `LD_LIBRARY_PATH`. As a Rust library it finds and controls that
//! shared library: see [`install`].
//!
//! What it models on purpose, because code gets it wrong: device memory that the CPU cannot touch, streams that work
//! late, pinned and unpinned host memory, registered pages that their file loses, contexts, stream captures, peers,
//! memory that runs out, functions that fail or hang.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `FAKE_CUDA_DEVICES` | how many GPUs | 1 |
//! | `FAKE_CUDA_MEMORY` | bytes of memory of each | 8 GiB |
//! | `FAKE_CUDA_DELAY_US` | greatest delay before each piece of queued work | 20 |
//! | `FAKE_CUDA_DEFAULT_STREAM_DELAY_US` | delay before each piece of work on a default stream (legacy or per thread), beside that | 0 |
//! | `FAKE_CUDA_FAULTS` | `name:code[@after=N][@times=M],…`; queued work is called `async:copy`, `async:kernel`, `async:resident`, `async:host`, `async:wait`, `async:write`, `async:event`, `async:set`, `async:free`; a module is loaded as `cuModuleLoadData:cubin` or `cuModuleLoadData:ptx` too | none |
//! | `FAKE_CUDA_REGISTER_US` | microseconds that registering a MiB takes, in which no other call begins | 0 |
//! | `FAKE_CUDA_CONNECTIONS` | hardware connections that streams share, each strictly in order of submission (or `CUDA_DEVICE_MAX_CONNECTIONS`) | one for each stream |
//! | `FAKE_CUDA_CPU` | the CPU that the GPU's work runs on, and nothing else should: the resident kernel polls there without a pause | any, with pauses |
//! | `FAKE_CUDA_ATTRIBUTES` | `number=value,…`: device attributes that differ from the usual | none |

mod access;
mod api;
mod context;
mod driver_lock;
mod entry;
mod environment;
mod fault;
mod harness;
mod kernel;
mod memory;
mod resident;
mod result;
mod state;
mod stream;
mod work;

pub use api::Leaks;
pub use harness::{Fake, install, library_path};
