//! The library that `make install` puts there: one program of tests, because each of them takes seconds to link.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;

mod exported_symbols;
mod header_layout;
mod install;
mod nvidia_library;
mod python_bindings;
mod replay;
mod setuid_programs;
mod usdt;
