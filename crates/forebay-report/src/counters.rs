//! What the kernel counted of drives and NFS mounts beside a run.

use serde::{Deserialize, Serialize};

/// A drive as iostat shows it, or an NFS mount as nfsiostat does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StorageCounters {
    /// The block device, or where NFS is mounted.
    pub name: String,
    /// Reads.
    pub read: Flow,
    /// Writes.
    pub write: Flow,
    /// I/Os in flight in the mean; `None` for NFS.
    pub in_flight: Option<f64>,
    /// Part of the time with an I/O in flight, in percent; `None` for NFS.
    pub busy_percent: Option<f64>,
}

/// One direction of a drive or mount.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    /// I/Os per second.
    pub ops_per_s: f64,
    /// MB (10⁶ bytes) per second.
    pub mb_per_s: f64,
    /// KiB of an I/O in the mean.
    pub kib_per_op: f64,
    /// Milliseconds of an I/O in the mean.
    pub await_ms: f64,
    /// I/Os merged with others per second; `None` for NFS.
    pub merged_per_s: Option<f64>,
    /// Milliseconds from request to reply in the mean; `None` for drives.
    pub rtt_ms: Option<f64>,
    /// Milliseconds before the request was sent in the mean; `None` for drives.
    pub queue_ms: Option<f64>,
    /// Requests that were sent again; `None` for drives.
    pub retransmitted: Option<u64>,
}
