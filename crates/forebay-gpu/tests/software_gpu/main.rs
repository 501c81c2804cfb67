//! The real CUDA code over the software GPU, and host memory as a device.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../common/mod.rs"]
mod common;

mod call_series;
mod capture;
mod checksums;
mod copies;
mod gather;
mod host;
mod kernel_images;
mod memory;
mod register_pages;
mod resident;
mod stream_words;
