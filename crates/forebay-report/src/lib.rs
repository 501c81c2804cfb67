//! Whole tables with one command.
//!
//! An [`Order`] names presets (or a file that describes a table), devices, paths and a folder. [`run`] measures row by
//! row, each run a fresh `forebay bench`, and keeps `report.json` in the folder up to date after every run: ended by
//! Ctrl-C, a crash or a time limit, the same order goes on from there. `report.html` and `report.md` are rendered from
//! it. [`compare()`] tells what became better or worse from one report to another.

mod child;
mod compare;
mod comparison_files;
mod folder;
mod machine;
mod made;
pub mod model;
mod objects;
mod order;
mod pairing;
mod peers;
mod plan;
mod presets;
mod quantity;
mod render;
mod resume;
mod run;
mod runner;
mod spec;
mod targets;
mod work;

pub use compare::{Change, Comparison, Outcome, compare};
pub use comparison_files::write_comparison;
pub use objects::{ObjectFigures, ObjectIo, ObjectWay, ObjectWork};
pub use order::{Extent, Order, PRESETS, Pairing, Preset, presets};
pub use quantity::{Quantity, Summary, Verdict, figure, ratio};
pub use run::{Ended, Finished, Planned, Progress, Watch, run};
#[doc(hidden)]
pub use runner::load_machine;
pub use targets::MIN_FILE_BYTES;
