//! One range on its way between a source and host memory: the plan, the segment, the ring.
pub(crate) mod ahead;
pub(crate) mod plan;
pub(crate) mod refusal;
pub(crate) mod ring;
pub(crate) mod segment;
pub(crate) mod wake;
