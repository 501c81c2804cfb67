//! The engines: each joins one capability of a source with one kind of memory.
pub(crate) mod elect;
pub(crate) mod libcufile;
pub(crate) mod mapped;
pub(crate) mod p2p;
pub(crate) mod permission;
pub(crate) mod staged;
