//! Ranges of an object.
