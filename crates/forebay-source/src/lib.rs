//! The interface of a source of stored bytes to engines. A crate that implements [`Source`] needs this one and no
//! engine.

mod beside;
mod location;
mod opener;
mod place;
mod request;
mod round_trip;
mod source;
mod state;
mod stored_sum;
mod upload;

pub use forebay_sys::{DeviceRange, HostRange};

pub use beside::{Beside, BesideFile, BesideReads, beside, register_beside};
pub use location::Location;
pub use opener::{
    Access, ListEntry, ListedState, Opener, hint_for_missing, list, near_miss, opener_of, register, remove,
    scheme_of, states,
};
pub use place::{FileReplaced, Place, PlaceScope};
pub use request::{Answer, Direction, Request, RequestShape, Requests};
pub use round_trip::{count_round_trips, round_trip};
pub use source::{Facts, Fill, LateNote, Source};
pub use state::StateToken;
pub use stored_sum::StoredSum;
pub use upload::Upload;
