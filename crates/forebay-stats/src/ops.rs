//! The calls that are counted by their number alone.

use serde::Serialize;

/// Good and failed calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Calls that succeeded.
    pub ok: u64,
    /// Calls that failed.
    pub err: u64,
}

impl Count {
    /// Both.
    pub const fn all(self) -> u64 {
        // What comes from another process may be any number.
        self.ok.saturating_add(self.err)
    }
}

macro_rules! ops {
    ($($(#[$doc:meta])* $variant:ident $field:ident $name:literal),* $(,)?) => {
        /// A call that is counted. Reads, writes and their vectored forms are not here: they carry bytes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Op { $($(#[$doc])* $variant),* }

        impl Op {
            /// All of them, in the order of their counters.
            pub const ALL: &[Self] = &[$(Self::$variant),*];
            pub(crate) const COUNT: usize = Self::ALL.len();

            /// The name in reports.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
        }

        /// Calls by kind.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct CallCounts { $($(#[$doc])* pub $field: Count),* }

        impl CallCounts {
            pub(crate) fn from_words(words: &[[u64; 2]; Op::COUNT]) -> Self {
                Self { $($field: Count { ok: words[Op::$variant as usize][0], err: words[Op::$variant as usize][1] }),* }
            }

            /// The count of one kind.
            pub const fn get(&self, op: Op) -> Count {
                match op { $(Op::$variant => self.$field),* }
            }
        }
    };
}

ops! {
    /// Files registered.
    HandleRegister handle_register "HandleRegister",
    /// Files deregistered.
    HandleDeregister handle_deregister "HandleDeregister",
    /// Memory registered; counted by `buffer_registered`.
    BufRegister buf_register "BufRegister",
    /// Memory deregistered; counted by `buffer_deregistered`.
    BufDeregister buf_deregister "BufDeregister",
    /// Batches submitted; counted by `batch_submitted`.
    BatchSubmit batch_submit "BatchSubmit",
    /// Batches completed; counted by `batch_completed`.
    BatchComplete batch_complete "BatchComplete",
    /// Batch handles made.
    BatchSetup batch_setup "BatchSetup",
    /// Batches cancelled.
    BatchCancel batch_cancel "BatchCancel",
    /// Batch handles destroyed.
    BatchDestroy batch_destroy "BatchDestroy",
    /// Entries of batches that were queued.
    BatchEnqueued batch_enqueued "BatchEnqueued",
    /// Entries that were queued for the POSIX path.
    BatchPosixEnqueued batch_posix_enqueued "PosixBatchEnqueued",
    /// Entries of batches that were carried out.
    BatchProcessed batch_processed "BatchProcessed",
    /// Entries that were carried out on the POSIX path.
    BatchPosixProcessed batch_posix_processed "PosixBatchProcessed",
    /// Submissions to nvidia-fs: none here.
    BatchNvfsSubmit batch_nvfs_submit "BatchNvfsSubmit",
    /// Submissions by peer-to-peer DMA.
    BatchP2pSubmit batch_p2p_submit "BatchP2pSubmit",
    /// Submissions to Linux AIO: none here.
    BatchAioSubmit batch_aio_submit "BatchAioSubmit",
    /// Submissions to io_uring.
    BatchIoUringSubmit batch_iouring_submit "BatchIoUringSubmit",
    /// Submissions that took several ways.
    BatchMixedSubmit batch_mixed_submit "BatchMixedSubmit",
    /// Submissions of any kind.
    BatchTotalSubmit batch_total_submit "BatchTotalSubmit",
}
