//! Ranges of an object: requests that are neighbours become one call, whose body is received from request to request.
//!
//! | file | what it has |
//! |---|---|
//! | `limits` | lengths of ranges, and times |
//! | `plan` | which ranges are asked for, and where their bytes go: a state machine without a connection |
//! | `object` | the plan of an object, joined to its endpoint |
//! | `route` | where ranges are asked for |
//! | `target` | one state of an object |
//! | `places` | sites, and which of them has the same bytes |
//! | `sites` | a read that goes on at another site |
//! | `first` | bytes that came when the object was opened |
//! | `sink` | the reply to a range |
//! | `call` | the call of a range under way, and how long it takes |
//! | `replaced` | the error where another object has the name by now |

mod call;
#[cfg(test)]
mod copied;
mod first;
#[cfg(test)]
mod halved;
mod limits;
mod object;
mod places;
mod plan;
mod replaced;
mod route;
mod sink;
mod sites;
mod target;

pub(crate) use first::FIRST;
pub(crate) use object::{HeadNow, ObjectFetch};
pub(crate) use places::Sites;
pub(crate) use target::Target;
