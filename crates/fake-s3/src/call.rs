//! A request that is carried out.

use crate::request::Request;
use crate::sums::Summed;
use crate::{Asked, Fault, Shared};

/// A request that is carried out.
pub(crate) struct Call<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) request: &'a Request,
    pub(crate) asked: Asked,
    pub(crate) fault: Option<&'a Fault>,
    /// Empty where bodies are not kept.
    pub(crate) body: &'a [u8],
    pub(crate) summed: Summed,
}
