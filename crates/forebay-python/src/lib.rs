//! The native half of the Python package `forebay`: files, arrays, futures and receipts over the engine's session.
//!
//! Everything that waits releases the GIL, looks for Ctrl-C twenty times a second, and keeps what owns the memory
//! alive until the last byte has moved.

#![allow(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]

mod array;
mod checksum;
mod cli;
mod data_files;
mod dlpack;
mod error;
mod file;
mod flights;
mod future;
mod locations;
mod map;
mod models;
mod open;
mod order;
mod pieces;
mod receipt;
mod records;
mod session;
mod stream;
mod text;
mod view;
mod wait;

forebay_engine::publish_session!();

#[pyo3::pymodule(gil_used = false)]
mod _forebay {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::array::{Array, empty};
    #[pymodule_export]
    use crate::checksum::checksums;
    #[pymodule_export]
    use crate::cli::cli;
    #[pymodule_export]
    use crate::data_files::Files;
    #[pymodule_export]
    use crate::file::File;
    #[pymodule_export]
    use crate::flights::drain;
    #[pymodule_export]
    use crate::future::Future;
    #[pymodule_export]
    use crate::locations::{entries, has_folders, remove, state, states};
    #[pymodule_export]
    use crate::map::{Map, MapView, map};
    #[pymodule_export]
    use crate::models::{
        Pending, Runs, SafetensorsHeader, ZipPlan, crc32, crc32_combine, dtype_size, dtypes, npy_header,
        npy_itemsize, plan_load, plan_safetensors, plan_slice, plan_zip, read_npy_header, read_safetensors,
        read_shard_index, read_zip,
    };
    #[pymodule_export]
    use crate::open::open;
    #[pymodule_export]
    use crate::order::Order;
    #[pymodule_export]
    use crate::receipt::Receipt;
    #[pymodule_export]
    use crate::records::Table;
    #[pymodule_export]
    use crate::session::{device_count, device_name, notes, trim};
    #[pymodule_export]
    use crate::stream::{exchange_capture_mode, wait_stream};
    #[pymodule_export]
    use crate::text::{check_place, is_url, missing_hint};

    /// Transfers end before the interpreter does: their memory is its objects'.
    #[pymodule_init]
    fn start(module: &Bound<'_, PyModule>) -> PyResult<()> {
        forebay_sys::descriptor_table::make_room();
        forebay_nfs::register();
        forebay_objects::register();
        #[cfg(feature = "toy")]
        toy_source::register();
        module.py().import("atexit")?.call_method1("register", (module.getattr("_drain")?,)).map(drop)
    }

    /// The version of the package.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
