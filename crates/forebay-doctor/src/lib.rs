//! Which transfers work on this machine, which do not, why, and the fix.
//!
//! [`examine`] asks the machine through the seam [`System`], tries engines through the seam [`Exercise`] and returns
//! a [`CheckReport`] as plain data. Rendering is apart: [`gdscheck`] writes it in the layout of NVIDIA's tool, [`render`]
//! in forebay's own words, `serde` as JSON (`docs/reference/check.md` documents it).
//!
//! The word "supports" means that the report has just tried it: bytes were written, read back to the device and
//! compared.

pub mod cufile;
pub mod direct;
pub mod doctor;
pub mod engines;
pub mod exercise;
mod exports;
mod facts;
pub mod finding;
pub mod gdscheck;
pub mod gpu;
pub mod live;
pub mod machine;
mod nfs;
mod nfs_server;
mod objects;
mod rdma;
pub mod render;
pub mod report;
mod rules;
pub mod server;
mod site;
pub mod storage;
pub mod system;
pub mod topology;

pub use doctor::{DoctorOptions, DoctorReport, diagnose};
pub use exercise::Exercise;
pub use live::LiveExercise;
pub use nfs_server::ServerCopy;
pub use report::{CheckOptions, CheckReport, Overall, examine, test_file};
pub use site::SiteRules;
pub use system::{RealSystem, RootedSystem, System};

/// The version of forebay.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
