//! The options of NVIDIA's `cufile.json` and of the `CUFILE_*` variables, for the drop-in libcufile.
//!
//! Precedence, highest first: what the program sets by `cuFileSetParameter…`, the environment, the file, the default.
//! The file is the one that `CUFILE_ENV_PATH_JSON` names, else `/etc/cufile.json`. [`KEYS`] is the one table of keys;
//! `docs/reference/cufile-json.md` is generated from it.
//!
//! ```
//! use forebay_config::cufile::{Settings, SizeParameter};
//!
//! let file = r#"{ "properties": { "io_batchsize": 256, "max_io_threads": 8 } } // mine"#;
//! let loaded = Settings::load(|_| None, |_| Ok(file.to_owned()));
//! assert_eq!(loaded.settings.size(SizeParameter::IoBatchsize), 256);
//! assert_eq!(
//!     loaded.warnings,
//!     ["/etc/cufile.json: properties.max_io_threads: belongs into \"execution\"; ignored, execution.max_io_threads is 4"],
//! );
//! ```

mod json;
mod keys;
mod load;
mod parameters;
mod settings;
mod table;

pub use keys::{BLOCK_DEVICES, Effect, FILE_SYSTEMS, Key, Kind};
pub use load::{Loaded, PATH, PATH_VARIABLE};
pub use parameters::{ArrayParameter, BoolParameter, SizeParameter, StringParameter};
pub use settings::{Denylist, Interface, Log, LogLevel, LogPlace, Pool, Settings, Slabs};
pub use table::KEYS;
