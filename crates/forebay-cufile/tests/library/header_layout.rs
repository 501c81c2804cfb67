//! Sizes, offsets, numbers and texts of the interface: our header against a table, and against NVIDIA's own header,
//! which is fetched and never kept in the source.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::common::{MANIFEST, cc, clean, library_folder, run, scratch};

/// Types with their size, and their fields with offset and size, as 1.15 to 1.18 have them.
const STRUCTS: &str = "
CUfileError_t 8: err 0 4, cu_err 4 4
CUfileDrvProps_t 56: nvfs.major_version 0 4, nvfs.minor_version 4 4, nvfs.poll_thresh_size 8 8,
 nvfs.max_direct_io_size 16 8, nvfs.dstatusflags 24 4, nvfs.dcontrolflags 28 4, fflags 32 4,
 max_device_cache_size 36 4, per_buffer_cache_size 40 4, max_device_pinned_mem_size 44 4, max_batch_io_size 48 4,
 max_batch_io_timeout_msecs 52 4
cufileRDMAInfo_t 16: version 0 4, desc_len 4 4, desc_str 8 8
CUfileFSOps_t 40: fs_type 0 8, getRDMADeviceList 8 8, getRDMADevicePriority 16 8, read 24 8, write 32 8
CUfileDescr_t 24: type 0 4, handle 8 8, handle.fd 8 4, handle.handle 8 8, fs_ops 16 8
CUfileIOParams_t 64: mode 0 4, u.batch.devPtr_base 8 8, u.batch.file_offset 16 8, u.batch.devPtr_offset 24 8,
 u.batch.size 32 8, fh 40 8, opcode 48 4, cookie 56 8
CUfileIOEvents_t 24: cookie 0 8, status 8 4, ret 16 8
CUfileHandle_t 8:
CUfileBatchHandle_t 8:
CUstream 8:
CUresult 4:
CUfileOpError 4:
CUfileStatus_t 4:
CUfileOpcode_t 4:
CUfileOpCounter_t 16: ok 0 8, err 8 8
CUfileStatsLevel1_t 512: read_ops 0 16, write_ops 16 16, hdl_register_ops 32 16, hdl_deregister_ops 48 16,
 buf_register_ops 64 16, buf_deregister_ops 80 16, read_bytes 96 8, write_bytes 104 8, read_bw_bytes_per_sec 112 8,
 write_bw_bytes_per_sec 120 8, read_lat_avg_us 128 8, write_lat_avg_us 136 8, read_ops_per_sec 144 8,
 write_ops_per_sec 152 8, read_lat_sum_us 160 8, write_lat_sum_us 168 8, batch_submit_ops 176 16,
 batch_complete_ops 192 16, batch_setup_ops 208 16, batch_cancel_ops 224 16, batch_destroy_ops 240 16,
 batch_enqueued_ops 256 16, batch_posix_enqueued_ops 272 16, batch_processed_ops 288 16,
 batch_posix_processed_ops 304 16, batch_nvfs_submit_ops 320 16, batch_p2p_submit_ops 336 16,
 batch_aio_submit_ops 352 16, batch_iouring_submit_ops 368 16, batch_mixed_io_submit_ops 384 16,
 batch_total_submit_ops 400 16, batch_read_bytes 416 8, batch_write_bytes 424 8, batch_read_bw_bytes 432 8,
 batch_write_bw_bytes 440 8, batch_submit_lat_avg_us 448 8, batch_completion_lat_avg_us 456 8,
 batch_submit_ops_per_sec 464 8, batch_complete_ops_per_sec 472 8, batch_submit_lat_sum_us 480 8,
 batch_completion_lat_sum_us 488 8, last_batch_read_bytes 496 8, last_batch_write_bytes 504 8
CUfileStatsLevel2_t 1024: basic 0 512, read_size_kb_hist 512 256, write_size_kb_hist 768 256
CUfilePerGpuStats_t 248: uuid 0 16, read_bytes 16 8, read_bw_bytes_per_sec 24 8, read_utilization 32 8,
 read_duration_us 40 8, n_total_reads 48 8, n_p2p_reads 56 8, n_nvfs_reads 64 8, n_posix_reads 72 8,
 n_unaligned_reads 80 8, n_dr_reads 88 8, n_sparse_regions 96 8, n_inline_regions 104 8, n_reads_err 112 8,
 writes_bytes 120 8, write_bw_bytes_per_sec 128 8, write_utilization 136 8, write_duration_us 144 8,
 n_total_writes 152 8, n_p2p_writes 160 8, n_nvfs_writes 168 8, n_posix_writes 176 8, n_unaligned_writes 184 8,
 n_dr_writes 192 8, n_writes_err 200 8, n_mmap 208 8, n_mmap_ok 216 8, n_mmap_err 224 8, n_mmap_free 232 8,
 reg_bytes 240 8
CUfileStatsLevel3_t 5000: detailed 0 1024, num_gpus 1024 4, per_gpu_stats 1032 3968
";

/// Runs of numbers that begin with the one given, names with commas; `-` leaves one out.
const NUMBERS: &[(&str, i64, &str)] = &[
    (
        "CU_FILE_",
        5001,
        "DRIVER_NOT_INITIALIZED,DRIVER_INVALID_PROPS,DRIVER_UNSUPPORTED_LIMIT,DRIVER_VERSION_MISMATCH,\
         DRIVER_VERSION_READ_ERROR,DRIVER_CLOSING,PLATFORM_NOT_SUPPORTED,IO_NOT_SUPPORTED,DEVICE_NOT_SUPPORTED,\
         NVFS_DRIVER_ERROR,CUDA_DRIVER_ERROR,CUDA_POINTER_INVALID,CUDA_MEMORY_TYPE_INVALID,CUDA_POINTER_RANGE_ERROR,\
         CUDA_CONTEXT_MISMATCH,INVALID_MAPPING_SIZE,INVALID_MAPPING_RANGE,INVALID_FILE_TYPE,INVALID_FILE_OPEN_FLAG,\
         DIO_NOT_SET,-,INVALID_VALUE,MEMORY_ALREADY_REGISTERED,MEMORY_NOT_REGISTERED,PERMISSION_DENIED,\
         DRIVER_ALREADY_OPEN,HANDLE_NOT_REGISTERED,HANDLE_ALREADY_REGISTERED,DEVICE_NOT_FOUND,INTERNAL_ERROR,\
         GETNEWFD_FAILED,-,NVFS_SETUP_ERROR,IO_DISABLED,BATCH_SUBMIT_FAILED,GPU_MEMORY_PINNING_FAILED,BATCH_FULL,\
         ASYNC_NOT_SUPPORTED,INTERNAL_BATCH_SETUP_ERROR,INTERNAL_BATCH_SUBMIT_ERROR,INTERNAL_BATCH_GETSTATUS_ERROR,\
         INTERNAL_BATCH_CANCEL_ERROR,NOMEM_ERROR,IO_ERROR,INTERNAL_BUF_REGISTER_ERROR,HASH_OPR_ERROR,\
         INVALID_CONTEXT_ERROR,NVFS_INTERNAL_DRIVER_ERROR,BATCH_NOCOMPAT_ERROR,IO_MAX_ERROR",
    ),
    ("CU_FILE_", 0, "SUCCESS"),
    (
        "CU_FILE_",
        0,
        "LUSTRE_SUPPORTED,WEKAFS_SUPPORTED,NFS_SUPPORTED,GPFS_SUPPORTED,NVME_SUPPORTED,NVMEOF_SUPPORTED,\
         SCSI_SUPPORTED,SCALEFLUX_CSD_SUPPORTED,NVMESH_SUPPORTED,BEEGFS_SUPPORTED,-,NVME_P2P_SUPPORTED,\
         SCATEFS_SUPPORTED",
    ),
    ("CU_FILE_", 0, "USE_POLL_MODE,ALLOW_COMPAT_MODE"),
    ("CU_FILE_", 0, "DYN_ROUTING_SUPPORTED,BATCH_IO_SUPPORTED,STREAMS_SUPPORTED,PARALLEL_IO_SUPPORTED"),
    ("CU_FILE_HANDLE_TYPE_", 1, "OPAQUE_FD,OPAQUE_WIN32,USERSPACE_FS"),
    ("CUFILE_", 0, "READ,WRITE"),
    ("CUFILE_", 1, "BATCH"),
    ("CUFILE_", 1, "WAITING,PENDING,-,INVALID,-,-,-,CANCELED"),
    ("CUFILE_", 0x10, "COMPLETE"),
    ("CUFILE_", 0x20, "TIMEOUT"),
    ("CUFILE_", 0x40, "FAILED"),
    ("CU_FILE_RDMA_", 1, "REGISTER,RELAXED_ORDERING"),
    ("CU_FILE_STREAM_", 1, "FIXED_BUF_OFFSET,FIXED_FILE_OFFSET,-,FIXED_FILE_SIZE,-,-,-,PAGE_ALIGNED_INPUTS"),
    (
        "CUFILE_PARAM_",
        0,
        "PROFILE_STATS,EXECUTION_MAX_IO_QUEUE_DEPTH,EXECUTION_MAX_IO_THREADS,EXECUTION_MIN_IO_THRESHOLD_SIZE_KB,\
         EXECUTION_MAX_REQUEST_PARALLELISM,PROPERTIES_MAX_DIRECT_IO_SIZE_KB,PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB,\
         PROPERTIES_PER_BUFFER_CACHE_SIZE_KB,PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB,PROPERTIES_IO_BATCHSIZE,\
         POLLTHRESHOLD_SIZE_KB,PROPERTIES_BATCH_IO_TIMEOUT_MS",
    ),
    (
        "CUFILE_PARAM_",
        0,
        "PROPERTIES_USE_POLL_MODE,PROPERTIES_ALLOW_COMPAT_MODE,FORCE_COMPAT_MODE,FS_MISC_API_CHECK_AGGRESSIVE,\
         EXECUTION_PARALLEL_IO,PROFILE_NVTX,PROPERTIES_ALLOW_SYSTEM_MEMORY,USE_PCIP2PDMA,PREFER_IO_URING,\
         FORCE_ODIRECT_MODE,SKIP_TOPOLOGY_DETECTION,STREAM_MEMOPS_BYPASS",
    ),
    ("CUFILE_PARAM_", 0, "LOGGING_LEVEL,ENV_LOGFILE_PATH,LOG_DIR"),
    ("CUFILE_PARAM_", 0, "POSIX_POOL_SLAB_SIZE_KB,POSIX_POOL_SLAB_COUNT"),
];

/// Texts that programs are known to compare.
const TEXTS: &[(u32, &str)] = &[
    (0, "cufile success"),
    (
        5001,
        "nvidia-fs driver is not loaded. Set allow_compat_mode to true in cufile.json file to enable compatible mode",
    ),
    (5008, "GPUDirect Storage not supported on current file"),
    (5019, "unsupported file open flags"),
    (5022, "invalid arguments"),
    (5024, "device pointer lookup failure"),
    (5027, "file descriptor is not registered"),
    (5030, "internal error"),
];

/// Compiles `tests/c/layout.c` against the header in `include`, before ours, and answers what it prints.
fn printed(include: &[&Path], folder: &Path) -> String {
    let program = folder.join("layout");
    let mut command = cc();
    // The first header found counts: the given folders stand before ours.
    let mut before = Command::new(command.get_program());
    before.args(include.iter().map(|path| format!("-I{}", path.display())));
    before.args(command.get_args());
    command = before;
    run(command.arg("-std=gnu11").arg(format!("{MANIFEST}/tests/c/layout.c")).arg("-o").arg(&program));
    run(&mut Command::new(program))
}

fn ours() -> &'static str {
    static PRINTED: OnceLock<String> = OnceLock::new();
    PRINTED.get_or_init(|| printed(&[], scratch().path()))
}

#[test]
fn structs_have_the_layout_of_1_15() {
    let text = STRUCTS.replace(",\n", ",").replace(":\n ", ": ");
    let mut wanted = 0;
    for line in text.lines().filter(|line| !line.is_empty()) {
        let (head, fields) = line.split_once(':').unwrap();
        let (name, size) = head.split_once(' ').unwrap();
        let start = format!("{name} size {size} align ");
        assert!(ours().lines().any(|line| line.starts_with(&start)), "{start}?");
        for field in fields.split(',').map(str::trim).filter(|field| !field.is_empty()) {
            let [field, at, size] = field.split(' ').collect::<Vec<_>>()[..] else { panic!("{field}") };
            let line = format!("{name}.{field} at {at} size {size}");
            assert!(ours().lines().any(|other| other == line), "{line}?");
            wanted += 1;
        }
    }
    assert_eq!(
        ours().lines().filter(|line| line.contains(" at ")).count(),
        wanted,
        "a field is not in the table"
    );
}

#[test]
fn numbers_are_those_of_1_15() {
    let values: BTreeMap<&str, i64> = ours()
        .lines()
        .filter_map(|line| line.split_once(" = "))
        .map(|(name, value)| (name, value.parse().unwrap()))
        .collect();
    for &(prefix, first, names) in NUMBERS {
        for (number, name) in (first..).zip(names.split(',')).filter(|(_, name)| *name != "-") {
            assert_eq!(values.get(format!("{prefix}{name}").as_str()), Some(&number), "{prefix}{name}");
        }
    }
}

#[test]
fn texts_are_those_that_programs_compare() {
    for (code, text) in TEXTS {
        let line = format!("{code}: {text}");
        assert!(ours().lines().any(|other| other == line), "{line}?");
    }
    let codes = (5001..=5050).filter(|code| ![5021, 5032].contains(code));
    for code in codes {
        let start = format!("{code}: ");
        let line = ours().lines().find(|line| line.starts_with(&start)).expect("a text for each code");
        assert!(!line.contains("unknown"), "{line}");
    }
}

/// C99 and C++11, pedantic, with a cuda.h and without one.
#[test]
fn the_header_compiles_everywhere() {
    let folder = scratch();
    let source = folder.path().join("empty.c");
    std::fs::write(&source, "#include <cufile.h>\n#include <cufile.h>\nint main() { return IS_CUFILE_ERR(-5001) && CUFILE_ERRSTR(5001)[0] ? 0 : 1; }\n").unwrap();
    let stub = stub_of_cuda(folder.path());
    for (compiler, language, standards) in
        [("cc", "c", ["c99", "c11", "gnu17"]), ("c++", "c++", ["c++11", "c++17", "gnu++20"])]
    {
        if Command::new(compiler).arg("--version").output().is_err() {
            eprintln!("skipped: no {compiler}");
            continue;
        }
        for standard in standards {
            for cuda in [None, Some(&stub)] {
                let mut command = Command::new(compiler);
                command.args(["-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only"]);
                // As one's own header, not a system one: warnings count.
                command.arg(format!("-std={standard}")).arg(format!("-I{MANIFEST}/include"));
                command.args(cuda.map(|path| format!("-I{}", path.display())));
                run(command.args(["-x", language]).arg(&source));
            }
        }
    }
}

/// A cuda.h that declares what cufile.h uses of it, and no more.
fn stub_of_cuda(folder: &Path) -> PathBuf {
    let stub = folder.join("cuda");
    std::fs::create_dir_all(&stub).unwrap();
    let text = "#ifndef STUB_CUDA_H\n#define STUB_CUDA_H\n#define CUDA_VERSION 13000\n\
                typedef struct CUstream_st *CUstream;\ntypedef enum cudaError_enum { CUDA_SUCCESS = 0 } CUresult;\n#endif\n";
    std::fs::write(stub.join("cuda.h"), text).unwrap();
    stub
}

/// The folder of NVIDIA's header, from its wheel: fetched once and kept in the build folder. `None` where it cannot be.
fn nvidia() -> Option<PathBuf> {
    static FETCHED: OnceLock<Option<PathBuf>> = OnceLock::new();
    FETCHED.get_or_init(fetch).clone()
}

fn fetch() -> Option<PathBuf> {
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nvidia-cufile-1.15");
    let include = kept.join("nvidia/cu13/include");
    if include.join("cufile.h").exists() {
        return Some(include);
    }
    let folder = scratch();
    let mut pip = Command::new("timeout");
    pip.args([
        "120",
        "python3",
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--quiet",
        "--disable-pip-version-check",
        "--retries=1",
        "--timeout=10",
    ]);
    pip.args(["--only-binary", ":all:", "nvidia-cufile==1.15.*", "--dest"]).arg(folder.path());
    match pip.output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            eprintln!(
                "skipped: pip cannot fetch nvidia-cufile: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
            return None;
        }
        Err(error) => {
            eprintln!("skipped: no pip to fetch nvidia-cufile with: {error}");
            return None;
        }
    }
    let wheel =
        std::fs::read_dir(folder.path()).unwrap().next().expect("pip has fetched a file").unwrap().path();
    let unpacked = folder.path().join("unpacked");
    run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(wheel).arg(&unpacked));
    assert!(unpacked.join("nvidia/cu13/include/cufile.h").exists(), "the wheel has another shape");
    // Another test process may have been quicker.
    let _ = std::fs::rename(&unpacked, &kept);
    Some(include)
}

#[test]
fn nvidias_header_says_the_same() {
    let Some(include) = nvidia() else { return };
    let folder = scratch();
    let theirs = printed(&[&include, &stub_of_cuda(folder.path())], folder.path());
    let different: Vec<_> =
        ours().lines().zip(theirs.lines()).filter(|(ours, theirs)| ours != theirs).collect();
    assert!(
        different.is_empty() && ours().lines().count() == theirs.lines().count(),
        "ours, theirs: {different:#?}"
    );
}

/// Programs that were compiled against NVIDIA's header run on this library.
#[test]
fn programs_of_nvidias_header_run() {
    let Some(include) = nvidia() else { return };
    let folder = scratch();
    let stub = stub_of_cuda(folder.path());
    for name in ["open_close", "read_write", "batch", "stream", "stats"] {
        let program = folder.path().join(name);
        let mut command = Command::new("cc");
        command
            .args(["-std=gnu11", "-O1"])
            .arg(format!("-I{}", include.display()))
            .arg(format!("-I{}", stub.display()));
        command.arg(format!("{MANIFEST}/tests/c/{name}.c")).arg("-o").arg(&program);
        run(command.arg("-L").arg(library_folder()).args(["-lcufile", "-lpthread", "-ldl"]));
        let gpu = fake_cuda::library_path().expect("the software GPU was built with these tests");
        run(clean(&program).arg(folder.path()).env("FOREBAY_LIBCUDA", gpu));
    }
}
