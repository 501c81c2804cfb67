//! Values of a process, and raw kernel calls below everything else.
pub(crate) mod fork;
pub(crate) mod owned;
pub(crate) mod pinned;
pub(crate) mod pinned_group;
pub(crate) mod process;
pub(crate) mod slot_pool;
pub(crate) mod sys;
pub(crate) mod traffic;
pub(crate) mod wait;
pub(crate) mod wake_queue;

pub(crate) use forebay_sys::lock;
