//! The numbers by which `cuFileGetParameter…` and `cuFileSetParameter…` name options.

macro_rules! parameters {
    ($(#[$about:meta])* $type:ident, $count:ident { $($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal;)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum $type {
            $($(#[$doc])* $variant = $number,)+
        }

        impl $type {
            /// All of them, by number.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The one with this number, as it stands in the C interface.
            pub fn from_number(number: u32) -> Option<Self> {
                Self::ALL.get(number as usize).copied()
            }

            /// Its number in the C interface.
            pub const fn number(self) -> u32 {
                self as u32
            }

            /// Its name in the C interface, without the prefix `CUFILE_PARAM_`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }

        pub(super) const $count: usize = $type::ALL.len();
    };
}

parameters! {
    /// Options that are numbers (`CUFileSizeTConfigParameter_t`), in the unit that their name ends with.
    SizeParameter, SIZES {
        /// Level of the statistics that `cuFileGetStatsL1` to `L3` give, 0 to 3.
        ProfileStats = 0, "PROFILE_STATS";
        /// Requests that may wait for the library's threads.
        MaxIoQueueDepth = 1, "EXECUTION_MAX_IO_QUEUE_DEPTH";
        /// The library's threads for each GPU.
        MaxIoThreads = 2, "EXECUTION_MAX_IO_THREADS";
        /// Requests of at least this size are split.
        MinIoThresholdSizeKb = 3, "EXECUTION_MIN_IO_THRESHOLD_SIZE_KB";
        /// Into how many parts they are split.
        MaxRequestParallelism = 4, "EXECUTION_MAX_REQUEST_PARALLELISM";
        /// The largest request to the storage.
        MaxDirectIoSizeKb = 5, "PROPERTIES_MAX_DIRECT_IO_SIZE_KB";
        /// GPU memory for bounce buffers.
        MaxDeviceCacheSizeKb = 6, "PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB";
        /// One such buffer.
        PerBufferCacheSizeKb = 7, "PROPERTIES_PER_BUFFER_CACHE_SIZE_KB";
        /// GPU memory that may be pinned.
        MaxDevicePinnedMemSizeKb = 8, "PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB";
        /// Entries of a batch.
        IoBatchsize = 9, "PROPERTIES_IO_BATCHSIZE";
        /// Requests up to this size are polled for in poll mode.
        PollThresholdSizeKb = 10, "POLLTHRESHOLD_SIZE_KB";
        /// How long a batch waits for the storage at a time.
        BatchIoTimeoutMs = 11, "PROPERTIES_BATCH_IO_TIMEOUT_MS";
    }
}

parameters! {
    /// Options that are on or off (`CUFileBoolConfigParameter_t`).
    BoolParameter, FLAGS {
        /// Poll for completions instead of sleeping.
        UsePollMode = 0, "PROPERTIES_USE_POLL_MODE";
        /// Files and GPUs without a direct path may be served through host memory.
        AllowCompatMode = 1, "PROPERTIES_ALLOW_COMPAT_MODE";
        /// All are served through host memory.
        ForceCompatMode = 2, "FORCE_COMPAT_MODE";
        /// More checks of arguments.
        ApiCheckAggressive = 3, "FS_MISC_API_CHECK_AGGRESSIVE";
        /// Large requests are split over threads.
        ParallelIo = 4, "EXECUTION_PARALLEL_IO";
        /// Ranges for NVIDIA's profilers (deprecated).
        ProfileNvtx = 5, "PROFILE_NVTX";
        /// Host memory is taken as a buffer.
        AllowSystemMemory = 6, "PROPERTIES_ALLOW_SYSTEM_MEMORY";
        /// The kernel's PCI peer-to-peer path is preferred.
        UsePciP2pdma = 7, "USE_PCIP2PDMA";
        /// io_uring is preferred.
        PreferIoUring = 8, "PREFER_IO_URING";
        /// O_DIRECT even for descriptors that were opened without it.
        ForceOdirectMode = 9, "FORCE_ODIRECT_MODE";
        /// The machine's topology is not looked at.
        SkipTopologyDetection = 10, "SKIP_TOPOLOGY_DETECTION";
        /// Streams are ordered without stream memory operations.
        StreamMemopsBypass = 11, "STREAM_MEMOPS_BYPASS";
        /// Plain POSIX I/O without checks of the platform.
        PosixIoMode = 12, "POSIX_IO_MODE";
        /// A request that fails on the direct path is tried again through host memory.
        GdsFallbackIo = 13, "GDS_FALLBACK_IO";
    }
}

parameters! {
    /// Options that are texts (`CUFileStringConfigParameter_t`).
    StringParameter, STRINGS {
        /// See [`LogLevel`](super::LogLevel).
        LoggingLevel = 0, "LOGGING_LEVEL";
        /// The log file that `CUFILE_LOGFILE_PATH` names.
        EnvLogfilePath = 1, "ENV_LOGFILE_PATH";
        /// The folder of log files.
        LogDir = 2, "LOG_DIR";
        /// How RDMA is done.
        RdmaTransport = 3, "RDMA_TRANSPORT";
    }
}

parameters! {
    /// Options that are lists of numbers (`CUFileArrayConfigParameter_t`). Two and two make up [`Slabs`](super::Slabs).
    ArrayParameter, ARRAYS {
        /// Sizes of the buffers of the POSIX pool.
        PosixPoolSlabSizeKb = 0, "POSIX_POOL_SLAB_SIZE_KB";
        /// How many there are of each size.
        PosixPoolSlabCount = 1, "POSIX_POOL_SLAB_COUNT";
        /// Sizes of the bounce buffers in GPU memory.
        GpuBounceBufferSlabSizeKb = 2, "GPU_BOUNCE_BUFFER_SLAB_SIZE_KB";
        /// How many there are of each size.
        GpuBounceBufferSlabCount = 3, "GPU_BOUNCE_BUFFER_SLAB_COUNT";
    }
}

// Numbers are places in ALL; a test says so too.
const _: () = assert!(SIZES == 12 && FLAGS == 14 && STRINGS == 4 && ARRAYS == 4);
