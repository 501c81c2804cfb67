//! The names that most programs need: `use forebay::prelude::*;`.

pub use crate::config::{CachePolicy, Config, Objective};
pub use crate::{
    Buffer, Direction, EngineKind, Error, ErrorKind, File, Outcome, ReadPiece, Receipt, Session, Source,
    Ticket, Way,
};
