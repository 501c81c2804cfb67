//! What an operator has to know, and no client.

/// Says something on the standard error.
pub(crate) fn warn(text: &str) {
    eprintln!("forebay: {text}");
}
