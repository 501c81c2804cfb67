//! Readers of formats: one program of tests, because each of them takes seconds to link.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod npy;
mod safetensors;
mod slice;
mod zip;
