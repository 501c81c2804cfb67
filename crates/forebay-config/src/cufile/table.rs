//! The one table of keys. `docs/reference/cufile-json.md` is generated from it.
//!
//! Defaults are what NVIDIA's library 1.15 runs with where there is no file; ranges are those it reports, but for
//! batches (`io_batchsize` was 256 at most, the timeout 1000, though its own callers set more).

use super::keys::Effect::{Ignored, Kept, Used};
use super::keys::Kind::{Any, Flag, Number, Numbers, Text, Texts, Word};
use super::keys::{Key, Target};
use super::parameters::{ArrayParameter as A, BoolParameter as B, SizeParameter as S};

const LANES: &str = "`FOREBAY_LANES` says how many threads move bytes.";
const SLOTS: &str = "`FOREBAY_SLOTS` and `FOREBAY_SLOT_SIZE` bound the memory under I/O.";
const RDMA: &str =
    "RDMA storage is NVIDIA's own path; forebay reads such file systems as the kernel mounts them.";
const P2P: &str = "No kernel module and no PCI peer-to-peer path is used.";
const DENY: &str = "It forbids NVIDIA's direct path there; forebay uses none, so it serves the files anyway.";
const TOPOLOGY: &str = "The topology is not used.";

/// All keys, in the order they are documented.
pub const KEYS: &[Key] = &[
    Key::new(
        "logging.dir",
        Text,
        "",
        Used("Log files go to this folder; without it (and `FOREBAY_CUFILE_LOG`) nothing is logged. The variable names a file."),
    )
    .variable("CUFILE_LOGFILE_PATH")
    .goes(Target::LogDir),
    Key::new(
        "logging.level",
        Word(&["NOTICE", "ERROR", "WARN", "INFO", "DEBUG", "TRACE"]),
        "\"ERROR\"",
        Used("How much is logged where a log was asked for; TRACE: every call. The variable alone, above ERROR, logs to standard error."),
    )
    .variable("CUFILE_LOGGING_LEVEL")
    .goes(Target::LogLevel),
    Key::new(
        "logging.max_file_size_mb",
        Number { min: -1, max: Some(4096) },
        "32",
        Used("The log file ends there; -1 sets no limit, 0 is refused."),
    )
    .variable("CUFILE_LOGFILE_MAX_SIZE_MB")
    .goes(Target::LogMaxSize),
    Key::new("profile.nvtx", Flag, "false", Kept("Deprecated; use `forebay run --trace`."))
        .variable("CUFILE_NVTX")
        .goes(Target::Flag(B::ProfileNvtx)),
    Key::new(
        "profile.cufile_stats",
        Number { min: 0, max: Some(3) },
        "0",
        Used("The level that `cuFileGetStatsL1` to `L3` need. `forebay stats` works at any level."),
    )
    .goes(Target::Size(S::ProfileStats)),
    Key::new("execution.max_io_queue_depth", Number { min: 1, max: Some(256) }, "128", Kept(LANES))
        .goes(Target::Size(S::MaxIoQueueDepth)),
    Key::new("execution.max_io_threads", Number { min: 0, max: Some(32) }, "4", Kept(LANES))
        .goes(Target::Size(S::MaxIoThreads)),
    Key::new("execution.parallel_io", Flag, "true", Kept("Large requests are always spread over lanes."))
        .goes(Target::Flag(B::ParallelIo)),
    Key::new(
        "execution.min_io_threshold_size_kb",
        Number { min: 4, max: Some(4_294_967_295) },
        "8192",
        Kept("forebay cuts requests by its slots."),
    )
    .goes(Target::Size(S::MinIoThresholdSizeKb)),
    Key::new("execution.max_request_parallelism", Number { min: 0, max: Some(8) }, "4", Kept(LANES))
        .goes(Target::Size(S::MaxRequestParallelism)),
    Key::new(
        "properties.max_direct_io_size_kb",
        Number { min: 64, max: Some(16384) },
        "1024",
        Kept("forebay cuts requests by its slots."),
    )
    .shipped("16384")
    .goes(Target::Size(S::MaxDirectIoSizeKb)),
    Key::new("properties.max_device_cache_size_kb", Number { min: 0, max: None }, "131072", Kept(SLOTS))
        .goes(Target::Size(S::MaxDeviceCacheSizeKb)),
    Key::new("properties.per_buffer_cache_size_kb", Number { min: 64, max: Some(16384) }, "1024", Kept(SLOTS))
        .goes(Target::Size(S::PerBufferCacheSizeKb)),
    Key::new(
        "properties.max_device_pinned_mem_size_kb",
        Number { min: 64, max: None },
        "33554432",
        Kept("Registering a buffer pins no GPU memory."),
    )
    .goes(Target::Size(S::MaxDevicePinnedMemSizeKb)),
    Key::new("properties.posix_pool_slab_size_kb", Numbers, "[4,1024,16384]", Kept(SLOTS))
        .goes(Target::Slabs(A::PosixPoolSlabSizeKb)),
    Key::new("properties.posix_pool_slab_count", Numbers, "[128,64,64]", Kept(SLOTS))
        .goes(Target::Slabs(A::PosixPoolSlabCount)),
    Key::new(
        "properties.gpu_bounce_buffer_slab_config.slab_size_kb",
        Numbers,
        "[1024,8192,16384,65536]",
        Kept(SLOTS),
    )
    .aliases(&["properties.gpu_bounce_buffer_slab_size_kb"])
    .goes(Target::Slabs(A::GpuBounceBufferSlabSizeKb)),
    Key::new("properties.gpu_bounce_buffer_slab_config.slab_count", Numbers, "[128,8,4,2]", Kept(SLOTS))
        .aliases(&["properties.gpu_bounce_buffer_slab_count"])
        .goes(Target::Slabs(A::GpuBounceBufferSlabCount)),
    Key::new("properties.use_poll_mode", Flag, "false", Kept("`FOREBAY_OBJECTIVE` says how threads wait."))
        .goes(Target::Flag(B::UsePollMode)),
    Key::new(
        "properties.poll_mode_max_size_kb",
        Number { min: 4, max: Some(18_014_398_509_481_980) },
        "4",
        Kept("`FOREBAY_OBJECTIVE` says how threads wait."),
    )
    .goes(Target::Size(S::PollThresholdSizeKb)),
    Key::new("properties.use_pci_p2pdma", Flag, "false", Kept(P2P))
        .variable("CUFILE_USE_PCIP2PDMA")
        .goes(Target::Flag(B::UsePciP2pdma)),
    Key::new(
        "properties.allow_compat_mode",
        Flag,
        "true",
        Used("`false` gives a warning, and with `forebay_strict_compat` makes opening fail (5001)."),
    )
    .aliases(&["properties.use_compat_mode"])
    .variable("CUFILE_ALLOW_COMPAT_MODE")
    .goes(Target::Flag(B::AllowCompatMode)),
    Key::new(
        "properties.force_compat_mode",
        Flag,
        "false",
        Used("`true` allows what `allow_compat_mode=false` with `forebay_strict_compat` refuses."),
    )
    .variable("CUFILE_FORCE_COMPAT_MODE")
    .goes(Target::Flag(B::ForceCompatMode)),
    Key::new(
        "properties.forebay_strict_compat",
        Flag,
        "false",
        Used("A key of forebay: with `true`, `allow_compat_mode=false` makes opening fail."),
    )
    .variable("FOREBAY_CUFILE_STRICT_COMPAT")
    .goes(Target::StrictCompat),
    Key::new(
        "properties.allow_system_memory",
        Flag,
        "true",
        Kept("Host memory is always taken as a buffer."),
    )
    .goes(Target::Flag(B::AllowSystemMemory)),
    Key::new(
        "properties.io_batchsize",
        Number { min: 1, max: Some(1 << 20) },
        "128",
        Used("The most entries of a batch (`cuFileBatchIOSetUp`)."),
    )
    .aliases(&["properties.max_batch_io_size"])
    .goes(Target::Size(S::IoBatchsize)),
    Key::new(
        "properties.max_batch_io_timeout_msecs",
        Number { min: 1, max: Some(3_600_000) },
        "5",
        Kept("The caller decides how long a batch waits."),
    )
    .goes(Target::Size(S::BatchIoTimeoutMs)),
    Key::new(
        "properties.io_priority",
        Word(&["default", "low", "med", "high"]),
        "\"default\"",
        Ignored("All transfers have the same priority."),
    ),
    Key::new(
        "properties.force_odirect_mode",
        Flag,
        "false",
        Kept("`FOREBAY_CACHE=bypass` reads and writes past the page cache."),
    )
    .goes(Target::Flag(B::ForceOdirectMode)),
    Key::new("properties.prefer_iouring", Flag, "false", Kept("`FOREBAY_IO` says how lanes talk to the kernel."))
        .goes(Target::Flag(B::PreferIoUring)),
    Key::new(
        "properties.vanilla_posix_io_mode",
        Flag,
        "false",
        Kept("The platform is never a reason to refuse a file."),
    )
    .goes(Target::Flag(B::PosixIoMode)),
    Key::new("properties.gds_fallback_io", Flag, "false", Kept(P2P)).goes(Target::Flag(B::GdsFallbackIo)),
    Key::new(
        "properties.compat_odirect_unaligned_read_split",
        Flag,
        "false",
        Ignored("Unaligned heads and tails are split off by forebay itself."),
    ),
    Key::new(
        "properties.compat_odirect_unaligned_read_split_min_size_kb",
        Number { min: 0, max: None },
        "128",
        Ignored("Unaligned heads and tails are split off by forebay itself."),
    ),
    Key::new("properties.gds_rdma_write_support", Flag, "true", Ignored(RDMA)),
    Key::new("properties.allow_rdma_token_reset", Flag, "false", Ignored(RDMA)),
    Key::new("properties.rdma_dev_addr_list", Texts, "[]", Ignored(RDMA)),
    Key::new(
        "properties.rdma_load_balancing_policy",
        Word(&["FirstFit", "MaxMinFit", "RoundRobin", "RoundRobinMaxMin", "Randomized"]),
        "\"RoundRobin\"",
        Ignored(RDMA),
    )
    .aliases(&["properties.rdma_peer_affinity_policy"]),
    Key::new("properties.rdma_dynamic_routing", Flag, "false", Ignored(RDMA)),
    Key::new(
        "properties.rdma_dynamic_routing_order",
        Texts,
        "[\"GPU_MEM_NVLINKS\",\"GPU_MEM\",\"SYS_MEM\",\"P2P\"]",
        Ignored(RDMA),
    ),
    Key::new("properties.rdma_peer_type", Word(&["peer_mem", "dmabuf"]), "\"peer_mem\"", Ignored(RDMA)),
    Key::new("properties.rdma_transport_type", Word(&["DC_V1", "EXT_RC_V1"]), "\"DC_V1\"", Kept(RDMA))
        .goes(Target::RdmaTransport),
    Key::new("properties.rdma_*", Any, "", Ignored(RDMA)),
    Key::new(
        "fs.generic.posix_unaligned_writes",
        Flag,
        "false",
        Ignored("Unaligned heads and tails of writes always go through the page cache."),
    )
    .goes(Target::UnalignedWrites),
    Key::new("fs.lustre.posix_gds_min_kb", Number { min: 0, max: None }, "0", Ignored(P2P)),
    Key::new("fs.beegfs.posix_gds_min_kb", Number { min: 0, max: None }, "0", Ignored(P2P)),
    Key::new("fs.scatefs.posix_gds_min_kb", Number { min: 0, max: None }, "0", Ignored(P2P)),
    Key::new("fs.weka.rdma_write_support", Flag, "false", Ignored(RDMA)),
    Key::new("fs.gpfs.gds_write_support", Flag, "false", Ignored(P2P)).shipped("true"),
    Key::new("fs.gpfs.gds_async_support", Flag, "true", Ignored(P2P)),
    Key::new("fs.*.rdma_dev_addr_list", Texts, "[]", Ignored(RDMA)),
    Key::new("fs.*.mount_table", Any, "{}", Ignored(RDMA)),
    Key::new("fs.*.use_pci_p2pdma", Flag, "false", Ignored(P2P)),
    Key::new("block.*.use_pci_p2pdma", Flag, "false", Ignored(P2P)),
    Key::new("denylist.drivers", Texts, "[]", Ignored(DENY))
        .aliases(&["blacklist.drivers"])
        .goes(Target::DenyDrivers),
    Key::new("denylist.devices", Texts, "[]", Ignored(DENY))
        .aliases(&["blacklist.devices"])
        .goes(Target::DenyDevices),
    Key::new("denylist.mounts", Texts, "[]", Ignored(DENY))
        .aliases(&["blacklist.mounts"])
        .goes(Target::DenyMounts),
    Key::new("denylist.filesystems", Texts, "[]", Ignored(DENY))
        .aliases(&["blacklist.filesystems"])
        .goes(Target::DenyFilesystems),
    Key::new("sparse.p2p_compat_enable", Flag, "true", Ignored(P2P)),
    Key::new("sparse.min_p2pdma_threshold_kb", Number { min: 0, max: None }, "8", Ignored(P2P)),
    Key::new(
        "miscellaneous.api_check_aggressive",
        Flag,
        "false",
        Kept("Arguments are always checked."),
    )
    .goes(Target::Flag(B::ApiCheckAggressive)),
    Key::new("miscellaneous.skip_topology_detection", Flag, "false", Kept(TOPOLOGY))
        .variable("CUFILE_SKIP_TOPOLOGY_DETECTION")
        .goes(Target::Flag(B::SkipTopologyDetection)),
    Key::new(
        "miscellaneous.stream_memops_bypass",
        Flag,
        "false",
        Kept("forebay finds out how a stream can wait."),
    )
    .goes(Target::Flag(B::StreamMemopsBypass)),
    Key::new("miscellaneous.enable_static_routing", Flag, "false", Ignored(TOPOLOGY))
        .aliases(&["sparse.enable_static_routing"]),
    Key::new("miscellaneous.static_routing_filepath", Text, "\"/etc/topology.json\"", Ignored(TOPOLOGY))
        .aliases(&["sparse.static_routing_filepath"]),
    Key::new("miscellaneous.rdma_token_reset_timeout_secs", Number { min: 0, max: None }, "30", Ignored(RDMA)),
];
