//! The ways that bytes take.

/// What a row of the table says.
struct WayRow {
    name: &'static str,
    words: &'static str,
    is_direct: bool,
}

macro_rules! ways {
    ($($(#[$doc:meta])+ $way:ident { $($field:ident: $value:expr),+ })+) => {
        /// How an engine got at stored bytes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum Way { $($(#[$doc])+ $way,)+ }

        impl Way {
            /// All ways, in the order in which receipts name them.
            pub const ALL: [Self; Self::COUNT] = [$(Self::$way),+];
            /// How many there are.
            pub const COUNT: usize = ROWS.len();
        }

        static ROWS: [WayRow; [$(Way::$way),+].len()] = [$(WayRow { $($field: $value),+ }),+];
    };
}

// To add a way, add a row; its bytes are a word more in the counters' layout (docs/reference/stats.md).
// name: in JSON, metrics and Python. words: in texts, behind a number of bytes. is_direct: no byte crosses the CPU.
ways! {
    /// Bytes that were in the page cache (or are memory by nature, as tmpfs), and all buffered writes.
    Cached { name: "cached", words: "page cache", is_direct: false }
    /// Bytes by O_DIRECT.
    Direct { name: "direct", words: "O_DIRECT", is_direct: false }
    /// Cold bytes that went through the page cache all the same (unaligned, or the file refuses O_DIRECT).
    Buffered { name: "buffered", words: "cold through the page cache", is_direct: false }
    /// Bytes moved on request: by a source without a file descriptor, the server of a file on a mount
    /// (beside the kernel), or NVIDIA's libcufile.
    Requested { name: "requested", words: "by request", is_direct: false }
    /// Bytes that the device read from (or wrote to) the page cache in place.
    Mapped { name: "mapped", words: "in place by the device", is_direct: true }
    /// Bytes that came from another device's memory, where several devices read one file together.
    Peer { name: "peer", words: "from other devices", is_direct: true }
    /// Bytes that the drive moved to or from the device's memory by itself.
    Drive { name: "drive", words: "by the drive itself", is_direct: true }
    /// Bytes that a server wrote to the device's memory by RDMA.
    Server { name: "server", words: "by RDMA from the server", is_direct: true }
}

impl Way {
    const fn row(self) -> &'static WayRow {
        &ROWS[self as usize]
    }

    /// The name in JSON, metrics and Python.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The words of texts, behind a number of bytes.
    pub const fn words(self) -> &'static str {
        self.row().words
    }

    /// Whether no byte crosses the CPU.
    pub const fn is_direct(self) -> bool {
        self.row().is_direct
    }

    /// The way of a name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|way| way.name() == name)
    }
}
