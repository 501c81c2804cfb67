//! The table of environment variables.

/// An environment variable of forebay.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What values it takes.
    pub values: &'static str,
    /// The value that holds when it is not set.
    pub default: &'static str,
    /// What it does, in a sentence.
    pub about: &'static str,
}

/// All environment variables, in the order they are documented.
pub const VARIABLES: &[Variable] = &[
    Variable {
        name: "FOREBAY_LANES",
        values: "1..64",
        default: "(measured)",
        about: "Worker threads per device; each owns an io_uring, its slots and a device stream. By default \
                three quarters of the allowed CPUs, 1 to 12, at first; then as few as reach the best rate, \
                up to all of them (12 at most). The processes of a machine that `LOCAL_WORLD_SIZE` counts \
                (torchrun sets it) share its CPUs.",
    },
    Variable {
        name: "FOREBAY_SLOTS",
        values: "2..64",
        default: "8",
        about: "The most pinned slots per lane: warm reads use three at most, cold ones all.",
    },
    Variable {
        name: "FOREBAY_SLOT_SIZE",
        values: "64K..64M, a power of two",
        default: "2M",
        about: "Bytes per slot; by default 1M where `LOCAL_WORLD_SIZE` counts several processes. Each lane pins \
                its slots and about 4 MiB for small reads and lists, whatever the file's size.",
    },
    Variable {
        name: "FOREBAY_OBJECTIVE",
        values: "throughput, cpu, latency",
        default: "throughput",
        about: "How threads wait: `throughput` polls briefly if few callers wait and then sleeps, `cpu` \
                always sleeps, `latency` spins.",
    },
    Variable {
        name: "FOREBAY_CACHE",
        values: "auto, keep, bypass",
        default: "auto",
        about: "Page cache policy: warm pages from the cache and cold ones by O_DIRECT, everything through \
                the cache, or nothing.",
    },
    Variable {
        name: "FOREBAY_IO",
        values: "auto, ring, threads, sqpoll",
        default: "auto",
        about: "How lanes talk to the kernel: io_uring, preadv on threads, or io_uring whose submissions a \
                busy thread of the kernel takes.",
    },
    Variable {
        name: "FOREBAY_ORDER",
        values: "default, none",
        default: "default",
        about: "Drop-in libcufile: `default`: device copies of synchronous calls and batches run after the \
                work that was queued on the default streams when the call began. `none`: they wait for \
                nothing, so the program must synchronize before it calls.",
    },
    Variable {
        name: "FOREBAY_RESIDENT",
        values: "auto, off",
        default: "auto",
        about: "Small copies of several synchronous callers, and of batches of few, go through mailboxes \
                that a short-lived kernel on the GPU polls, without a driver call for each; `off` copies by \
                the driver. Debuggers, sanitizers, profilers and CUDA_LAUNCH_BLOCKING switch it off, too.",
    },
    Variable {
        name: "FOREBAY_STRICT",
        values: "engine names with commas",
        default: "(all allowed)",
        about: "Engines that payload may use; a transfer that would use another fails before its first byte.",
    },
    Variable {
        name: "FOREBAY_ENGINE",
        values: "an engine's name",
        default: "(elected)",
        about: "Uses this engine, without election ([names](../concepts/engines.md)). `libcufile` is \
                NVIDIA's own libcufile; `noop` moves nothing: it measures forebay's own overhead.",
    },
    Variable {
        name: "FOREBAY_PIN_BUDGET",
        values: "0, or a size",
        default: "25 % of the available memory, at most half of what the cgroup still allows",
        about: "The most page cache that the process pins for the `mapped` engine; 0 switches the engine \
                off.",
    },
    Variable {
        name: "FOREBAY_PIN_SETTLE",
        values: "milliseconds, 20 or more",
        default: "1000",
        about: "A file's pages are pinned once the file has not changed for this long. If its writers are unknown, it must \
                also rest this long before and after it is read again because it changed.",
    },
    Variable {
        name: "FOREBAY_PIN_PACE",
        values: "GB/s, or 0",
        default: "50",
        about: "Pinning counts as slow below this rate, and below 1.2 times that of the lanes (tmpfs until \
                measured); then pages are staged at first. From the second read on, large requests and long \
                reads of many callers pin them window by window, for 1/20 of the time of reading; from the \
                third on, smaller ones are pinned beside other copies. For a single reader with at most 64 \
                MiB per request 20 GB/s count as fast. 0 always pins at once.",
    },
    Variable {
        name: "FOREBAY_NFS",
        values: "auto, off, tcp, rdma",
        default: "auto",
        about: "How forebay reads files on NFS. URLs (`nfs://SERVER/EXPORT/PATH`): `auto` and `tcp` use \
                forebay's own client over TCP; `rdma` moves bytes only by RDMA (port 20049), or opening \
                fails with the reason; `off` refuses URLs. Files on a mount: the kernel reads them, except \
                large cold reads. With `auto` on mounts over RDMA, and with `rdma` on all mounts whose \
                server takes RDMA, the server places these in GPU memory (engine `placed`); with `tcp` they \
                use forebay's own TCP connections; with `off` the kernel reads them, too.",
    },
    Variable {
        name: "FOREBAY_NFS_CONNECTIONS",
        values: "1..16",
        default: "8",
        about: "Connections to one NFS server that carry bytes. They are made as there is work for them.",
    },
    Variable {
        name: "FOREBAY_S3_ENDPOINTS",
        values: "NAME=URL,NAME2=URL",
        default: "(one endpoint)",
        about: "Sites that have the same buckets, the nearest first; 8 at most. Objects are read from the first, and from \
                the next one where it is gone or has not the object; they are written to the first alone. \
                `s3://NAME@BUCKET/KEY` is one site and no other. `NAME=URL;profile=PROFILE`: a site with keys of its own.",
    },
    Variable {
        name: "FOREBAY_NFS_SERVERS",
        values: "NAME=ADDRESS,ADDRESS,NAME2=ADDRESS",
        default: "(one address)",
        about: "Further addresses of NFS servers: `NAME` is the server's as in `nfs://NAME/…` or in the \
                mount, each `ADDRESS` a name or a number (`10.0.0.12`, `fd00::12`) without a port; 15 for a \
                server at most. Connections that carry bytes go to all addresses in turn, the first \
                included. An address is used once it has proved to be the same server; others are left out, \
                and the receipt has the reason.",
    },
    Variable {
        name: "FOREBAY_S3_LOCAL",
        values: "auto, off, require",
        default: "auto",
        about: "Objects of `forebay serve s3` on the same node: `auto` reads and writes them by their files where \
                the gateway's socket is here, and by S3 elsewhere; `off` always goes by S3; `require` fails \
                where the file cannot be had, with the reason.",
    },
    Variable {
        name: "FOREBAY_S3_RDMA",
        values: "prefer, off, require",
        default: "prefer",
        about: "Objects by RDMA, between their server and memory: `prefer` asks the server where this machine has an \
                RDMA NIC on the way, once in 10 minutes, and goes by HTTP where it does not take it; `off` never \
                asks; `require` fails, with the reason, where the bytes cannot go by RDMA.",
    },
    Variable {
        name: "FOREBAY_VENDOR_LIBCUFILE",
        values: "an absolute path",
        default: "(searched for)",
        about: "Engine `libcufile`: NVIDIA's libcufile.so.0, where it is not in a usual place.",
    },
    Variable {
        name: "FOREBAY_VENDOR_TIMEOUT",
        values: "milliseconds, 20 or more",
        default: "30000",
        about: "Engine `libcufile`: how long a call of NVIDIA's libcufile may take (opening it: twice that). \
                A longer call counts as hung: its transfers fail, and the library is not called again in \
                this process.",
    },
    Variable {
        name: "FOREBAY_LIBCUDA",
        values: "a path",
        default: "libcuda.so.1",
        about: "The driver library to load, for tests.",
    },
    Variable {
        name: "FOREBAY_CUFILE_STRICT_COMPAT",
        values: "0, 1",
        default: "0",
        about: "Drop-in libcufile: with 1, `allow_compat_mode=false` makes opening fail (5001) where it only \
                warns otherwise.",
    },
    Variable {
        name: "FOREBAY_CUFILE_VERSION",
        values: "1.15, 1.19",
        default: "1.15",
        about: "Drop-in libcufile: the version of the interface that the program was built against. With \
                1.19 `cuFileGetStatsL1` to `L3` fill its longer structures, and `cuFileGetVersion` says \
                1190. Only for programs that have them: in others it would write beyond their end.",
    },
    Variable {
        name: "FOREBAY_CUFILE_LOG",
        values: "a path, or `stderr`",
        default: "(no log)",
        about: "Drop-in libcufile: writes log lines in NVIDIA's format there.",
    },
    Variable {
        name: "FOREBAY_LIBCUFILE",
        values: "a folder",
        default: "(beside the `forebay` binary)",
        about: "Where `forebay run` finds the drop-in libcufile.so.0.",
    },
    Variable {
        name: "FOREBAY_RUN",
        values: "a number",
        default: "(set by `forebay run`)",
        about: "The same number in all processes of one run: their traces do not replace each other.",
    },
    Variable {
        name: "FOREBAY_PATCH",
        values: "`safetensors`",
        default: "(nothing)",
        about: "Python: the libraries that forebay replaces, in every process that starts with the variable \
                and has forebay's wheel installed; `forebay run --patch` and `patch_safetensors()` set it \
                for children.",
    },
    Variable {
        name: "FOREBAY_PATCH_SEEN",
        values: "a path",
        default: "(set by `forebay run --patch`)",
        about: "Each process that was patched adds a line to this file.",
    },
    Variable {
        name: "FOREBAY_TRACE",
        values: "a path",
        default: "(no trace)",
        about: "Drop-in libcufile: the trace file that gets a record of each call; `forebay run --trace` \
                sets it.",
    },
    Variable {
        name: "FOREBAY_COUNTERS_DIR",
        values: "a folder",
        default: "(a memfd)",
        about: "Drop-in libcufile: live counters go to files in this folder instead of a memfd; `forebay \
                run` sets it.",
    },
    Variable {
        name: "FOREBAY_DEMO_SIZE",
        values: "a size",
        default: "1G",
        about: "Size of the temporary file of `forebay demo`.",
    },
];
