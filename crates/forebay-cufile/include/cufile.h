/*
 * cufile.h: the interface of forebay's libcufile.so.0
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Names, numbers and layouts are those of libcufile 1.15 (CUDA 13.0), so that programs written for that library compile
 * and link unchanged. Functions that came later are marked with their version. Nothing here needs CUDA to be installed:
 * where <cuda.h> is missing, the two types that are used of it are declared below.
 *
 * Conventions
 *   - Functions are thread-safe. None needs a CUDA context of the caller.
 *   - CUfileError_t: `err` tells what happened; `cu_err` is the CUDA driver's code where err is
 *     CU_FILE_CUDA_DRIVER_ERROR, and 0 otherwise.
 *   - Functions that move bytes return how many, or -1 with errno set: to a POSIX code if the file or the device failed,
 *     to a CUfileOpError (above CUFILEOP_BASE_ERR) if an argument is wrong.
 *   - "KiB" is 1024 bytes. Offsets and sizes are in bytes unless a unit is given. Any alignment is legal everywhere.
 *   - pthread_cancel does not end a thread inside of a call: it ends at its next cancellation point. No function is one.
 *   - A process that was forked after the first call must not use the library: its functions fail there.
 */
#ifndef FOREBAY_CUFILE_H
#define FOREBAY_CUFILE_H
/* Keeps NVIDIA's header out when both are on the include path. */
#define __CUFILE_H_

#include <arpa/inet.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <time.h>

#if !defined(CUDA_VERSION) && defined(__has_include)
#if __has_include(<cuda.h>)
#include <cuda.h>
#endif
#endif
#if !defined(CUDA_VERSION)
/* No cuda.h. Both have the size that cuda.h gives them. */
typedef struct CUstream_st *CUstream;
typedef int CUresult;
#endif

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

struct timespec; /* strict C99 hides it in <time.h> */

/* ------------------------------------------------------------------------------------------------------- errors -- */

/* Codes above this are cuFile's own; up to here they are errno's. */
#define CUFILEOP_BASE_ERR 5000

/* What a function answers. 5021 and 5032 do not exist. */
typedef enum CUfileOpError {
    CU_FILE_SUCCESS = 0,
    CU_FILE_DRIVER_NOT_INITIALIZED = 5001, /* the driver is not open, or may not be opened */
    CU_FILE_DRIVER_INVALID_PROPS = 5002,
    CU_FILE_DRIVER_UNSUPPORTED_LIMIT = 5003,
    CU_FILE_DRIVER_VERSION_MISMATCH = 5004,
    CU_FILE_DRIVER_VERSION_READ_ERROR = 5005,
    CU_FILE_DRIVER_CLOSING = 5006, /* transfers are in flight, or the driver was closed */
    CU_FILE_PLATFORM_NOT_SUPPORTED = 5007,
    CU_FILE_IO_NOT_SUPPORTED = 5008, /* this kind of handle, or of file, cannot be used */
    CU_FILE_DEVICE_NOT_SUPPORTED = 5009,
    CU_FILE_NVFS_DRIVER_ERROR = 5010,
    CU_FILE_CUDA_DRIVER_ERROR = 5011, /* see cu_err */
    CU_FILE_CUDA_POINTER_INVALID = 5012,
    CU_FILE_CUDA_MEMORY_TYPE_INVALID = 5013,
    CU_FILE_CUDA_POINTER_RANGE_ERROR = 5014, /* the range leaves its allocation */
    CU_FILE_CUDA_CONTEXT_MISMATCH = 5015,
    CU_FILE_INVALID_MAPPING_SIZE = 5016,
    CU_FILE_INVALID_MAPPING_RANGE = 5017, /* the range leaves the registered memory */
    CU_FILE_INVALID_FILE_TYPE = 5018,     /* neither a regular file nor a block device */
    CU_FILE_INVALID_FILE_OPEN_FLAG = 5019,
    CU_FILE_DIO_NOT_SET = 5020,
    CU_FILE_INVALID_VALUE = 5022,
    CU_FILE_MEMORY_ALREADY_REGISTERED = 5023,
    CU_FILE_MEMORY_NOT_REGISTERED = 5024,
    CU_FILE_PERMISSION_DENIED = 5025,
    CU_FILE_DRIVER_ALREADY_OPEN = 5026, /* a parameter can be set only while the driver is closed */
    CU_FILE_HANDLE_NOT_REGISTERED = 5027,
    CU_FILE_HANDLE_ALREADY_REGISTERED = 5028,
    CU_FILE_DEVICE_NOT_FOUND = 5029,
    CU_FILE_INTERNAL_ERROR = 5030,
    CU_FILE_GETNEWFD_FAILED = 5031,
    CU_FILE_NVFS_SETUP_ERROR = 5033,
    CU_FILE_IO_DISABLED = 5034, /* cufile.json forbids this file */
    CU_FILE_BATCH_SUBMIT_FAILED = 5035,
    CU_FILE_GPU_MEMORY_PINNING_FAILED = 5036,
    CU_FILE_BATCH_FULL = 5037,
    CU_FILE_ASYNC_NOT_SUPPORTED = 5038, /* not on this stream: it is being captured */
    CU_FILE_INTERNAL_BATCH_SETUP_ERROR = 5039,
    CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR = 5040,
    CU_FILE_INTERNAL_BATCH_GETSTATUS_ERROR = 5041,
    CU_FILE_INTERNAL_BATCH_CANCEL_ERROR = 5042,
    CU_FILE_NOMEM_ERROR = 5043,
    CU_FILE_IO_ERROR = 5044,
    CU_FILE_INTERNAL_BUF_REGISTER_ERROR = 5045,
    CU_FILE_HASH_OPR_ERROR = 5046,
    CU_FILE_INVALID_CONTEXT_ERROR = 5047,
    CU_FILE_NVFS_INTERNAL_DRIVER_ERROR = 5048,
    CU_FILE_BATCH_NOCOMPAT_ERROR = 5049,
    CU_FILE_IO_MAX_ERROR = 5050
} CUfileOpError;

/* The answer of most functions. */
typedef struct CUfileError {
    CUfileOpError err;
    CUresult cu_err;
} CUfileError_t;

/* The text of an error. Programs compare these texts, so they are those that programs know. */
static inline const char *cufileop_status_error(CUfileOpError status) {
    switch ((int)status) {
    case 0: return "cufile success";
    case 5001:
        return "nvidia-fs driver is not loaded. Set allow_compat_mode to true in cufile.json file to enable compatible mode";
    case 5002: return "invalid property";
    case 5003: return "property range error";
    case 5004: return "nvidia-fs driver version mismatch";
    case 5005: return "nvidia-fs driver version read error";
    case 5006: return "driver shutdown in progress";
    case 5007: return "GPUDirect Storage not supported on current platform";
    case 5008: return "GPUDirect Storage not supported on current file";
    case 5009: return "GPUDirect Storage not supported on current GPU";
    case 5010: return "nvidia-fs driver ioctl error";
    case 5011: return "CUDA Driver API error";
    case 5012: return "invalid device pointer";
    case 5013: return "invalid pointer memory type";
    case 5014: return "pointer range exceeds allocated address range";
    case 5015: return "cuda context mismatch";
    case 5016: return "access beyond maximum pinned size";
    case 5017: return "access beyond mapped size";
    case 5018: return "unsupported file type";
    case 5019: return "unsupported file open flags";
    case 5020: return "fd direct IO not set";
    case 5022: return "invalid arguments";
    case 5023: return "device pointer already registered";
    case 5024: return "device pointer lookup failure";
    case 5025: return "driver or file access error";
    case 5026: return "driver is already open";
    case 5027: return "file descriptor is not registered";
    case 5028: return "file descriptor is already registered";
    case 5029: return "GPU device not found";
    case 5030: return "internal error";
    case 5031: return "failed to obtain new file descriptor";
    case 5033: return "NVFS driver initialization error";
    case 5034: return "GPUDirect Storage disabled by config on current file";
    case 5035: return "failed to submit batch operation";
    case 5036: return "failed to allocate pinned GPU Memory";
    case 5037: return "queue full for batch operation";
    case 5038: return "cuFile stream operation not supported";
    case 5039: return "batch setup internal error - retry later";
    case 5040: return "batch submit internal error - retry later";
    case 5041: return "batch get status internal error - retry later";
    case 5042: return "batch cancel internal error - retry later";
    case 5043: return "cufile no memory error - retry later";
    case 5044: return "cufile io error";
    case 5045: return "cufile buf registration error";
    case 5046: return "cufile hash operation error";
    case 5047: return "cufile invalid context error";
    case 5048: return "nvfs internal driver error";
    case 5049: return "compat mode off error";
    case 5050: return "GPUDirect Storage Max Error";
    default: return "unknown cufile error";
    }
}

/* Whether a number is cuFile's own code (of either sign), and its text. */
#define IS_CUFILE_ERR(err) (abs((err)) > CUFILEOP_BASE_ERR)
#define CUFILE_ERRSTR(err) cufileop_status_error((CUfileOpError)abs((err)))
/* Whether the CUDA driver failed, and with which code. */
#define IS_CUDA_ERR(status) ((status).err == CU_FILE_CUDA_DRIVER_ERROR)
#define CU_FILE_CUDA_ERR(status) ((status).cu_err)

/* ------------------------------------------------------------------------------------------------------- driver -- */

/* Numbers of bits in CUfileDrvProps_t.nvfs.dstatusflags: where the vendor's kernel path works. Here: nowhere. */
typedef enum CUfileDriverStatusFlags {
    CU_FILE_LUSTRE_SUPPORTED = 0,
    CU_FILE_WEKAFS_SUPPORTED = 1,
    CU_FILE_NFS_SUPPORTED = 2,
    CU_FILE_GPFS_SUPPORTED = 3,
    CU_FILE_NVME_SUPPORTED = 4,
    CU_FILE_NVMEOF_SUPPORTED = 5,
    CU_FILE_SCSI_SUPPORTED = 6,
    CU_FILE_SCALEFLUX_CSD_SUPPORTED = 7,
    CU_FILE_NVMESH_SUPPORTED = 8,
    CU_FILE_BEEGFS_SUPPORTED = 9,
    CU_FILE_NVME_P2P_SUPPORTED = 11,
    CU_FILE_SCATEFS_SUPPORTED = 12,
    CU_FILE_VIRTIOFS_SUPPORTED = 13, /* after 1.15 */
    CU_FILE_PANFS_SUPPORTED = 14,    /* after 1.15 */
    CU_FILE_MAX_TARGET_TYPES = 15
} CUfileDriverStatusFlags_t;

/* Numbers of bits in CUfileDrvProps_t.nvfs.dcontrolflags. */
typedef enum CUfileDriverControlFlags {
    CU_FILE_USE_POLL_MODE = 0,
    CU_FILE_ALLOW_COMPAT_MODE = 1,
    CU_FILE_POSIX_IO_MODE = 2, /* after 1.15 */
    CU_FILE_VANILLA_POSIX_IO_MODE = 2,
    CU_FILE_FALLBACK_IO_MODE = 4 /* after 1.15; 3 is not used */
} CUfileDriverControlFlags_t;

/* Numbers of bits in CUfileDrvProps_t.fflags. */
typedef enum CUfileFeatureFlags {
    CU_FILE_DYN_ROUTING_SUPPORTED = 0,
    CU_FILE_BATCH_IO_SUPPORTED = 1,
    CU_FILE_STREAMS_SUPPORTED = 2,
    CU_FILE_PARALLEL_IO_SUPPORTED = 3,
    CU_FILE_P2P_SUPPORTED = 4 /* after 1.15 */
} CUfileFeatureFlags_t;

/* Ways of moving bytes between a drive and a GPU, and their masks (1.16). */
typedef enum CUfileP2PFlags {
    CUFILE_P2PDMA = 0,
    CUFILE_NVFS = 1,
    CUFILE_DMABUF = 2,
    CUFILE_C2C = 3,
    CUFILE_NVIDIA_PEERMEM = 4
} CUfileP2PFlags_t;
#define CU_FILE_P2P_FLAG_PCI_P2PDMA ((CUfileP2PFlags_t)(1 << CUFILE_P2PDMA))
#define CU_FILE_P2P_FLAG_NVFS ((CUfileP2PFlags_t)(1 << CUFILE_NVFS))
#define CU_FILE_P2P_FLAG_DMABUF ((CUfileP2PFlags_t)(1 << CUFILE_DMABUF))
#define CU_FILE_P2P_FLAG_C2C ((CUfileP2PFlags_t)(1 << CUFILE_C2C))
#define CU_FILE_P2P_FLAG_NVIDIA_PEERMEM ((CUfileP2PFlags_t)(1 << CUFILE_NVIDIA_PEERMEM))

/* What cuFileDriverGetProperties fills in. */
typedef struct CUfileDrvProps {
    struct {
        unsigned int major_version; /* of the vendor's kernel module: 0.0, there is none */
        unsigned int minor_version;
        size_t poll_thresh_size;   /* KiB */
        size_t max_direct_io_size; /* KiB */
        unsigned int dstatusflags;
        unsigned int dcontrolflags;
    } nvfs;
    unsigned int fflags;
    unsigned int max_device_cache_size;      /* KiB */
    unsigned int per_buffer_cache_size;      /* KiB */
    unsigned int max_device_pinned_mem_size; /* KiB */
    unsigned int max_batch_io_size;          /* entries */
    unsigned int max_batch_io_timeout_msecs;
} CUfileDrvProps_t;

/*
 * Opens the driver, or adds a user if it is open. Not needed: the first registration or transfer opens it.
 * Errors: 5001 if cufile.json demands the vendor's kernel path strictly.
 */
CUfileError_t cuFileDriverOpen(void);

/*
 * Takes a user away. The last one's close deregisters all files, buffers and streams; opening again is legal.
 * Errors: 5001 if it is not open, 5006 if transfers are in flight.
 */
CUfileError_t cuFileDriverClose(void);
CUfileError_t cuFileDriverClose_v2(void);
#define cuFileDriverClose cuFileDriverClose_v2

/* How many users the driver has; 0 if it is closed. */
long cuFileUseCount(void);

/* The running properties, or those that opening would give. Errors: 5022 for NULL. */
CUfileError_t cuFileDriverGetProperties(CUfileDrvProps_t *props);

/* Polling for requests up to a size in KiB. Takes effect at once, open or not. Errors: 5022. */
CUfileError_t cuFileDriverSetPollMode(bool poll, size_t poll_threshold_size);

/* The greatest piece of one request, in KiB. Takes effect at once, open or not. Errors: 5022. */
CUfileError_t cuFileDriverSetMaxDirectIOSize(size_t max_direct_io_size);

/* Device memory for bounce buffers, in KiB: kept and reported. Errors: 5022. */
CUfileError_t cuFileDriverSetMaxCacheSize(size_t max_cache_size);

/* Device memory that may be registered, in KiB: kept and reported. Errors: 5022. */
CUfileError_t cuFileDriverSetMaxPinnedMemSize(size_t max_pinned_size);

/* The version whose interface this is: 1000 * major + 10 * minor, 1150. Errors: 5022 for NULL. */
CUfileError_t cuFileGetVersion(int *version);

/* Which P2P ways a kind of storage may take; a mask (1.16). Errors: 5022. */
CUfileError_t cuFileDriverGetP2PFlags(CUfileDriverStatusFlags_t status_flag, CUfileP2PFlags_t *p2p_flags);
CUfileError_t cuFileDriverSetP2PFlags(CUfileDriverStatusFlags_t status_flag, CUfileP2PFlags_t p2p_flags);

/* Writes the machine's PCIe topology to a new file, as JSON (1.17). Errors: 5022, 5025. */
CUfileError_t cuFileExportPCIeTopology(const char *filename);

/* The size of a GPU's BAR1, in KiB. Errors: 5022 for NULL or no such GPU. */
CUfileError_t cuFileGetBARSizeInKB(int gpuIndex, size_t *barSize);

/* -------------------------------------------------------------------------------------------------------- files -- */

typedef struct sockaddr sockaddr_t;

/* How a user-space file system describes memory to its server. */
typedef struct cufileRDMAInfo {
    int version;
    int desc_len;
    const char *desc_str;
} cufileRDMAInfo_t;

/* Flags of cuFileBufRegister: hints, taken and not needed. */
#define CU_FILE_RDMA_REGISTER 1
#define CU_FILE_RDMA_RELAXED_ORDERING (1 << 1)

/* The callbacks of a user-space file system. `off_t` is `loff_t` on the machines that this library is built for. */
typedef struct CUfileFSOps {
    const char *(*fs_type)(void *handle);
    int (*getRDMADeviceList)(void *handle, sockaddr_t **hostaddrs);
    int (*getRDMADevicePriority)(void *handle, char *name, size_t size, off_t offset, sockaddr_t *hostaddr);
    ssize_t (*read)(void *handle, char *buffer, size_t size, off_t offset, cufileRDMAInfo_t *info);
    ssize_t (*write)(void *handle, const char *buffer, size_t size, off_t offset, cufileRDMAInfo_t *info);
} CUfileFSOps_t;

typedef enum CUfileFileHandleType {
    CU_FILE_HANDLE_TYPE_OPAQUE_FD = 1,    /* a Linux descriptor */
    CU_FILE_HANDLE_TYPE_OPAQUE_WIN32 = 2, /* refused: 5008 */
    CU_FILE_HANDLE_TYPE_USERSPACE_FS = 3  /* registers with fs_ops, cannot be read or written */
} CUfileFileHandleType;

/* What to register. Only `type` and `handle.fd` are looked at for a descriptor. */
typedef struct CUfileDescr_t {
    CUfileFileHandleType type;
    union {
        int fd;
        void *handle;
    } handle;
    const CUfileFSOps_t *fs_ops;
} CUfileDescr_t;

typedef void *CUfileHandle_t;

/*
 * Registers an open file: a regular one or a block device, with O_DIRECT or without. The descriptor stays the caller's:
 * its flags, its position and the process's locks on the file are left alone, and bytes are moved by descriptors of the
 * library's. It should stay open until cuFileHandleDeregister: once it is closed, or of another file, calls on the handle
 * answer 5027, its number can be registered anew, and some seconds later the handle is gone. Opens the driver.
 * Errors: 5008 other types, 5018 no file or block device, 5019 O_APPEND, 5022 NULL or no open descriptor, 5028 already
 * registered, 5031 no descriptor to be had, 5034 forbidden by cufile.json.
 */
CUfileError_t cuFileHandleRegister(CUfileHandle_t *fh, CUfileDescr_t *descr);

/* Ends a registration. Transfers that have begun go on. Does not close the descriptor. Unknown handles: nothing. */
void cuFileHandleDeregister(CUfileHandle_t fh);

/* ------------------------------------------------------------------------------------------------------- memory -- */

/*
 * Registers memory: of a device, of a pool, mapped virtual memory, or the host's. Never needed for a transfer, and the
 * memory is not touched. Transfers at a registered base may not leave the registered memory. Opens the driver.
 * Errors: 5012 a pointer that the driver fails on, 5013 managed memory (which can be read into unregistered), 5014 the
 * range leaves its allocation, 5022 NULL or nothing, 5023 this base is registered.
 */
CUfileError_t cuFileBufRegister(const void *bufPtr_base, size_t length, int flags);

/* Ends a registration. Errors: 5024 not registered, 5022 NULL, 5006 the driver was closed meanwhile. */
CUfileError_t cuFileBufDeregister(const void *bufPtr_base);

/* ---------------------------------------------------------------------------------------------- reading, writing -- */

/*
 * Moves `size` bytes between the file at `file_offset` and memory at `bufPtr_base + bufPtr_offset`, and returns how many
 * were moved: fewer at the end of the file, 0 behind it. After a read, work on every stream sees the bytes.
 * The bytes are copied after what stood on the default streams of the memory's context (the legacy one, and the calling
 * thread's own) when the call began, so that a cudaMemset before a read, or a cudaMemcpy before a write, needs no wait.
 * This is more than cuFile promises. Work on other streams must be waited for by the caller. Nothing is ordered while
 * a stream is captured that the legacy one would have to wait for, nor with FOREBAY_ORDER=none.
 * Errors: -1 with errno: EINVAL no handle, 5027 a deregistered one, or one whose descriptor was closed or given to another
 * file (a call that had begun goes on with the old one), 5022 negative file offset, 5030 negative buffer
 * offset, 5019 the file cannot be read, 5017 outside of the registered memory, EIO a file that cannot be written, memory that
 * is not there or a device that failed; otherwise what read and write give (ENOSPC, EFBIG, EIO, ...).
 */
ssize_t cuFileRead(CUfileHandle_t fh, void *bufPtr_base, size_t size, off_t file_offset, off_t bufPtr_offset);
ssize_t cuFileWrite(CUfileHandle_t fh, const void *bufPtr_base, size_t size, off_t file_offset, off_t bufPtr_offset);

/* One of several pieces of memory (1.19). */
typedef struct CUfileIOVec {
    void *base;
    size_t len;
} CUfileIOVec_t;

/* As cuFileRead and cuFileWrite, of one range of the file and several pieces of memory, in order (1.19). `flags`: 0. */
ssize_t cuFileReadv(CUfileHandle_t fh, const CUfileIOVec_t *iov, size_t iovcnt, off_t file_offset, unsigned flags);
ssize_t cuFileWritev(CUfileHandle_t fh, const CUfileIOVec_t *iov, size_t iovcnt, off_t file_offset, unsigned flags);

/* ------------------------------------------------------------------------------------------------------- batches -- */

typedef enum CUfileOpcode { CUFILE_READ = 0, CUFILE_WRITE = 1 } CUfileOpcode_t;

typedef enum CUFILEStatus_enum {
    CUFILE_WAITING = 0x01,
    CUFILE_PENDING = 0x02,
    CUFILE_INVALID = 0x04,
    CUFILE_CANCELED = 0x08,
    CUFILE_COMPLETE = 0x10,
    CUFILE_TIMEOUT = 0x20,
    CUFILE_FAILED = 0x40
} CUfileStatus_t;

typedef enum cufileBatchMode { CUFILE_BATCH = 1 } CUfileBatchMode_t;

/* One entry of a batch. */
typedef struct CUfileIOParams {
    CUfileBatchMode_t mode;
    union {
        struct {
            void *devPtr_base;
            off_t file_offset;
            off_t devPtr_offset;
            size_t size;
        } batch;
    } u;
    CUfileHandle_t fh;
    CUfileOpcode_t opcode;
    void *cookie; /* comes back in the entry's event; may be NULL */
} CUfileIOParams_t;

/* The result of an entry. */
typedef struct CUfileIOEvents {
    void *cookie;
    CUfileStatus_t status;
    size_t ret; /* CUFILE_COMPLETE: bytes; CUFILE_FAILED: a negative errno or CUfileOpError, cast */
} CUfileIOEvents_t;

typedef void *CUfileBatchHandle_t;

/* Makes a batch of up to `nr` entries in flight. Errors: 5022 for NULL, 0, or more than the parameter IO_BATCHSIZE. */
CUfileError_t cuFileBatchIOSetUp(CUfileBatchHandle_t *batch_idp, unsigned nr);

/*
 * Starts `nr` entries, all or none; does not wait. They may run in any order, each after what stood on the default
 * streams at the call, as cuFileRead. A batch can be used again and again.
 * Errors: 5040 for whatever is wrong: more than fit, an unknown batch, file or argument. An unknown opcode is an entry
 * that fails.
 */
CUfileError_t cuFileBatchIOSubmit(CUfileBatchHandle_t batch_idp, unsigned nr, CUfileIOParams_t *iocbp,
                                  unsigned int flags);

/*
 * Waits until `min_nr` events are there or the timeout is over; takes up to `*nr` and sets it to how many came. Each
 * entry has one event, unless it was cancelled. NULL waits for as long as it takes, `min_nr` 0 not at all. A timeout is a success with fewer.
 * Errors: 5022 for NULL or min_nr > *nr, 5041 for an unknown batch.
 */
CUfileError_t cuFileBatchIOGetStatus(CUfileBatchHandle_t batch_idp, unsigned min_nr, unsigned *nr,
                                     CUfileIOEvents_t *iocbp, struct timespec *timeout);

/*
 * Cancels entries that have not started and waits for the others; does not report which bytes were moved. Afterwards
 * their memory is the program's again, and no event is left, also of entries that were complete before: GetStatus gives
 * 0. The batch can be used again. Entries that another thread submits meanwhile may be cancelled too. NULL is a success.
 * Errors: 5042 for an unknown batch.
 */
CUfileError_t cuFileBatchIOCancel(CUfileBatchHandle_t batch_idp);

/* Waits for what is in flight and ends the batch. Unknown and destroyed ones: nothing. */
void cuFileBatchIODestroy(CUfileBatchHandle_t batch_idp);

/* ------------------------------------------------------------------------------------------------------- streams -- */

/* Flags of cuFileStreamRegister: parameters that are final at submission, and that all of them are multiples of pages. */
#define CU_FILE_STREAM_FIXED_BUF_OFFSET 1
#define CU_FILE_STREAM_FIXED_FILE_OFFSET 2
#define CU_FILE_STREAM_FIXED_FILE_SIZE 4
#define CU_FILE_STREAM_PAGE_ALIGNED_INPUTS 8

/*
 * A transfer in the order of a stream (NULL: the default stream). Size and offsets are read when the stream reaches it,
 * unless the stream was registered with them fixed; `*size_p` at submission is the most that it may be. The pointers
 * must stay valid until then. `*bytes_read_p`: bytes, -1 for a failure of file or device, or a negative CUfileOpError
 * (-5027: the descriptor was closed, or given to another file, before the stream got here).
 * Errors of the submission: 5027 no such handle, or its descriptor is not the file's any more, 5019 the file's open flags, 5022 NULL, 5038 the stream is being
 * captured.
 */
CUfileError_t cuFileReadAsync(CUfileHandle_t fh, void *bufPtr_base, size_t *size_p, off_t *file_offset_p,
                              off_t *bufPtr_offset_p, ssize_t *bytes_read_p, CUstream stream);
CUfileError_t cuFileWriteAsync(CUfileHandle_t fh, void *bufPtr_base, size_t *size_p, off_t *file_offset_p,
                               off_t *bufPtr_offset_p, ssize_t *bytes_written_p, CUstream stream);

/* Registers the fixed parameters of a stream's transfers. Not needed for 0. Errors: 5022 unknown flags, or registered. */
CUfileError_t cuFileStreamRegister(CUstream stream, unsigned flags);

/* Waits for the stream and forgets it. Errors: 5022 not registered. */
CUfileError_t cuFileStreamDeregister(CUstream stream);

/* ---------------------------------------------------------------------------------------------------- parameters -- */

typedef enum CUFileSizeTConfigParameter_t {
    CUFILE_PARAM_PROFILE_STATS = 0,
    CUFILE_PARAM_EXECUTION_MAX_IO_QUEUE_DEPTH = 1,
    CUFILE_PARAM_EXECUTION_MAX_IO_THREADS = 2,
    CUFILE_PARAM_EXECUTION_MIN_IO_THRESHOLD_SIZE_KB = 3,
    CUFILE_PARAM_EXECUTION_MAX_REQUEST_PARALLELISM = 4,
    CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB = 5,
    CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB = 6,
    CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB = 7,
    CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB = 8,
    CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE = 9,
    CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB = 10,
    CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS = 11
} CUFileSizeTConfigParameter_t;

typedef enum CUFileBoolConfigParameter_t {
    CUFILE_PARAM_PROPERTIES_USE_POLL_MODE = 0,
    CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE = 1,
    CUFILE_PARAM_FORCE_COMPAT_MODE = 2,
    CUFILE_PARAM_FS_MISC_API_CHECK_AGGRESSIVE = 3,
    CUFILE_PARAM_EXECUTION_PARALLEL_IO = 4,
    CUFILE_PARAM_PROFILE_NVTX = 5,
    CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY = 6,
    CUFILE_PARAM_USE_PCIP2PDMA = 7,
    CUFILE_PARAM_PREFER_IO_URING = 8,
    CUFILE_PARAM_FORCE_ODIRECT_MODE = 9,
    CUFILE_PARAM_SKIP_TOPOLOGY_DETECTION = 10,
    CUFILE_PARAM_STREAM_MEMOPS_BYPASS = 11
} CUFileBoolConfigParameter_t;

typedef enum CUFileStringConfigParameter_t {
    CUFILE_PARAM_LOGGING_LEVEL = 0,
    CUFILE_PARAM_ENV_LOGFILE_PATH = 1, /* can be set, not read */
    CUFILE_PARAM_LOG_DIR = 2
} CUFileStringConfigParameter_t;

typedef enum CUFileArrayConfigParameter_t {
    CUFILE_PARAM_POSIX_POOL_SLAB_SIZE_KB = 0,
    CUFILE_PARAM_POSIX_POOL_SLAB_COUNT = 1
} CUFileArrayConfigParameter_t;

/*
 * Getting: the running value, or while the driver is closed the one that opening will take: the value set, else the
 * environment's, else cufile.json's, else the default. Setting: only while it is closed; the last one counts, until the
 * next open takes it. Units stand in the names.
 * Errors: 5022 NULL, an unknown parameter, a value out of range or a buffer too short for the text and its end; 5026
 * setting while the driver is open.
 */
CUfileError_t cuFileGetParameterSizeT(CUFileSizeTConfigParameter_t param, size_t *value);
CUfileError_t cuFileGetParameterBool(CUFileBoolConfigParameter_t param, bool *value);
CUfileError_t cuFileGetParameterString(CUFileStringConfigParameter_t param, char *desc_str, int len);
CUfileError_t cuFileSetParameterSizeT(CUFileSizeTConfigParameter_t param, size_t value);
CUfileError_t cuFileSetParameterBool(CUFileBoolConfigParameter_t param, bool value);
CUfileError_t cuFileSetParameterString(CUFileStringConfigParameter_t param, const char *desc_str);

/* The least and greatest value of a parameter. Errors: 5022, also for PROFILE_STATS. */
CUfileError_t cuFileGetParameterMinMaxValue(CUFileSizeTConfigParameter_t param, size_t *min_value, size_t *max_value);

/* Sizes (KiB) and counts of the vendor's host buffers: kept and given back; forebay sizes its own. Errors: 5022, 5026. */
CUfileError_t cuFileSetParameterPosixPoolSlabArray(const size_t *size_values, const size_t *count_values, int len);
CUfileError_t cuFileGetParameterPosixPoolSlabArray(size_t *size_values, size_t *count_values, int len);

/* The same of the vendor's device buffers (1.17). */
CUfileError_t cuFileSetParameterGpuBounceBufferSlabArray(const size_t *size_values, const size_t *count_values, int len);
CUfileError_t cuFileGetParameterGpuBounceBufferSlabArray(size_t *size_values, size_t *count_values, int len);

/* ---------------------------------------------------------------------------------------------------- statistics -- */

/* How often an operation was done, and how often it failed. */
typedef struct CUfileOpCounter {
    uint64_t ok;
    uint64_t err;
} CUfileOpCounter_t;

/* Level 1: totals of the process. 512 bytes, as in 1.15 to 1.18. Version 1.19 appended 112 bytes: a program that was built
   against a later header is given those, too, where the variable FOREBAY_CUFILE_VERSION is 1.19. */
typedef struct CUfileStatsLevel1 {
    CUfileOpCounter_t read_ops;
    CUfileOpCounter_t write_ops;
    CUfileOpCounter_t hdl_register_ops;
    CUfileOpCounter_t hdl_deregister_ops;
    CUfileOpCounter_t buf_register_ops;
    CUfileOpCounter_t buf_deregister_ops;
    uint64_t read_bytes;
    uint64_t write_bytes;
    uint64_t read_bw_bytes_per_sec; /* bandwidths, latencies and rates: of the last second */
    uint64_t write_bw_bytes_per_sec;
    uint64_t read_lat_avg_us;
    uint64_t write_lat_avg_us;
    uint64_t read_ops_per_sec;
    uint64_t write_ops_per_sec;
    uint64_t read_lat_sum_us;
    uint64_t write_lat_sum_us;
    CUfileOpCounter_t batch_submit_ops;
    CUfileOpCounter_t batch_complete_ops;
    CUfileOpCounter_t batch_setup_ops;
    CUfileOpCounter_t batch_cancel_ops;
    CUfileOpCounter_t batch_destroy_ops;
    CUfileOpCounter_t batch_enqueued_ops;
    CUfileOpCounter_t batch_posix_enqueued_ops;
    CUfileOpCounter_t batch_processed_ops;
    CUfileOpCounter_t batch_posix_processed_ops;
    CUfileOpCounter_t batch_nvfs_submit_ops;
    CUfileOpCounter_t batch_p2p_submit_ops;
    CUfileOpCounter_t batch_aio_submit_ops;
    CUfileOpCounter_t batch_iouring_submit_ops;
    CUfileOpCounter_t batch_mixed_io_submit_ops;
    CUfileOpCounter_t batch_total_submit_ops;
    uint64_t batch_read_bytes;
    uint64_t batch_write_bytes;
    uint64_t batch_read_bw_bytes;
    uint64_t batch_write_bw_bytes;
    uint64_t batch_submit_lat_avg_us;
    uint64_t batch_completion_lat_avg_us;
    uint64_t batch_submit_ops_per_sec;
    uint64_t batch_complete_ops_per_sec;
    uint64_t batch_submit_lat_sum_us;
    uint64_t batch_completion_lat_sum_us;
    uint64_t last_batch_read_bytes;
    uint64_t last_batch_write_bytes;
} CUfileStatsLevel1_t;

/* Level 2: how many requests were of which size: bucket 0 is under 4 KiB, each further one doubles. 1024 bytes. */
typedef struct CUfileStatsLevel2 {
    CUfileStatsLevel1_t basic;
    uint64_t read_size_kb_hist[32];
    uint64_t write_size_kb_hist[32];
} CUfileStatsLevel2_t;

/* One GPU's part. */
typedef struct CUfilePerGpuStats {
    char uuid[16];
    uint64_t read_bytes;
    uint64_t read_bw_bytes_per_sec;
    uint64_t read_utilization; /* percent; of all threads together, so that it may pass 100 */
    uint64_t read_duration_us;
    uint64_t n_total_reads;
    uint64_t n_p2p_reads;
    uint64_t n_nvfs_reads;
    uint64_t n_posix_reads;
    uint64_t n_unaligned_reads;
    uint64_t n_dr_reads;
    uint64_t n_sparse_regions;
    uint64_t n_inline_regions;
    uint64_t n_reads_err;
    uint64_t writes_bytes;
    uint64_t write_bw_bytes_per_sec;
    uint64_t write_utilization;
    uint64_t write_duration_us;
    uint64_t n_total_writes;
    uint64_t n_p2p_writes;
    uint64_t n_nvfs_writes;
    uint64_t n_posix_writes;
    uint64_t n_unaligned_writes;
    uint64_t n_dr_writes;
    uint64_t n_writes_err;
    uint64_t n_mmap; /* buffer registrations */
    uint64_t n_mmap_ok;
    uint64_t n_mmap_err;
    uint64_t n_mmap_free;
    uint64_t reg_bytes;
} CUfilePerGpuStats_t;

/* Level 3: GPU by GPU. 5000 bytes. */
typedef struct CUfileStatsLevel3 {
    CUfileStatsLevel2_t detailed;
    uint32_t num_gpus;
    CUfilePerGpuStats_t per_gpu_stats[16];
} CUfileStatsLevel3_t;

/* How much cuFileGetStatsL1 to L3 may tell: 0 nothing, up to 3. Open or not. Errors: 5022 out of 0 to 3. */
CUfileError_t cuFileSetStatsLevel(int level);
CUfileError_t cuFileGetStatsLevel(int *level);

/* Lets the counters run, holds them, sets them to 0. Starting again after a stop is legal. Errors: 5001 not open. */
CUfileError_t cuFileStatsStart(void);
CUfileError_t cuFileStatsStop(void);
CUfileError_t cuFileStatsReset(void);

/* Fills in the counters. Errors: 5001 not open, 5022 NULL or the level is lower. */
CUfileError_t cuFileGetStatsL1(CUfileStatsLevel1_t *stats);
CUfileError_t cuFileGetStatsL2(CUfileStatsLevel2_t *stats);
CUfileError_t cuFileGetStatsL3(CUfileStatsLevel3_t *stats);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif

#endif
