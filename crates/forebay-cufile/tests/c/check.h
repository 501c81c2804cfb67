/*
 * What the C programs share: checks, files of known bytes, and memory of the software GPU.
 *
 * A program is one topic. It gets a folder to work in, ends with 0, or tells the first thing that is not so and ends
 * with 1. Where the machine lacks something it prints "skipped: why" and goes on.
 */
#ifndef CHECK_H
#define CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <cufile.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define KIB ((size_t)1024)
#define MIB (1024 * KIB)

/* ------------------------------------------------------------------------------------------------------- checks -- */

#define FAIL(...) (fprintf(stderr, "%s:%d: ", __FILE__, __LINE__), fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), exit(1))

#define CHECK(condition) \
    do { \
        if (!(condition)) FAIL("not so: %s", #condition); \
    } while (0)

#define EQ(found, wanted) \
    do { \
        long long found_ = (long long)(found), wanted_ = (long long)(wanted); \
        if (found_ != wanted_) FAIL("%s is %lld, not %lld (%s)", #found, found_, wanted_, #wanted); \
    } while (0)

/* A call must answer this code, without a CUDA code beside it. */
#define CODE(call, wanted) \
    do { \
        CUfileError_t answer_ = (call); \
        if ((int)answer_.err != (int)(wanted)) FAIL("%s is %d, not %d", #call, (int)answer_.err, (int)(wanted)); \
        if (answer_.cu_err != 0) FAIL("%s: cu_err is %d", #call, (int)answer_.cu_err); \
    } while (0)
#define OK(call) CODE(call, CU_FILE_SUCCESS)

/* A transfer must answer -1 and set errno: a stale one must not survive. */
#define MINUS_ONE(call, wanted) \
    do { \
        errno = EEXIST; \
        ssize_t answer_ = (call); \
        int errno_ = errno; \
        if (answer_ != -1) FAIL("%s is %zd, not -1", #call, answer_); \
        if (errno_ != (wanted)) FAIL("%s: errno is %d (%s), not %d", #call, errno_, strerror(errno_), (int)(wanted)); \
    } while (0)

/* -------------------------------------------------------------------------------------------------- known bytes -- */

static inline unsigned char byte_at(uint64_t key, uint64_t at) {
    uint64_t mixed = (at + 1) * 0x9E3779B97F4A7C15u + key * 0xD1B54A32D192ED03u;
    return (unsigned char)(mixed >> 56);
}

static inline void fill(unsigned char *bytes, uint64_t key, uint64_t at, size_t len) {
    for (size_t i = 0; i < len; i++) bytes[i] = byte_at(key, at + i);
}

static inline unsigned char *new_bytes(uint64_t key, uint64_t at, size_t len) {
    unsigned char *bytes = malloc(len ? len : 1);
    CHECK(bytes);
    fill(bytes, key, at, len);
    return bytes;
}

#define SAME(bytes, key, at, len) \
    do { \
        for (size_t i_ = 0; i_ < (size_t)(len); i_++) \
            if ((bytes)[i_] != byte_at(key, (at) + i_)) \
                FAIL("byte %zu of %zu (%s at %lld) is wrong", i_, (size_t)(len), #bytes, (long long)(at)); \
    } while (0)

/* -------------------------------------------------------------------------------------------------------- files -- */

static inline const char *path_in(const char *folder, const char *name) {
    static __thread char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* A new file of known bytes, opened for both directions with these flags more; -1 if they are not to be had. */
static inline int new_file(const char *folder, const char *name, uint64_t key, size_t len, int flags) {
    const char *path = path_in(folder, name);
    unlink(path);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    unsigned char *bytes = new_bytes(key, 0, len);
    EQ(write(fd, bytes, len), len);
    free(bytes);
    close(fd);
    return open(path, O_RDWR | O_CLOEXEC | flags);
}

static inline CUfileError_t try_register(CUfileHandle_t *handle, int fd) {
    CUfileDescr_t descr;
    memset(&descr, 0xA5, sizeof descr); /* programs leave fs_ops as it is */
    descr.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
    descr.handle.fd = fd;
    return cuFileHandleRegister(handle, &descr);
}

static inline CUfileHandle_t register_fd(int fd) {
    CUfileHandle_t handle = NULL;
    OK(try_register(&handle, fd));
    CHECK(handle);
    return handle;
}

/* The bytes of a file as the page cache has them. */
static inline void file_has(int fd, uint64_t key, uint64_t at, off_t offset, size_t len) {
    unsigned char *bytes = malloc(len);
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int plain = open(link, O_RDONLY | O_CLOEXEC);
    CHECK(plain >= 0);
    EQ(pread(plain, bytes, len, offset), len);
    close(plain);
    SAME(bytes, key, at, len);
    free(bytes);
}

/* An entry of a batch; all that is not said is zero. */
static inline CUfileIOParams_t batch_entry(CUfileHandle_t handle, CUfileOpcode_t opcode, void *memory, size_t size, off_t at) {
    CUfileIOParams_t params;
    memset(&params, 0, sizeof params);
    params.mode = CUFILE_BATCH;
    params.fh = handle;
    params.opcode = opcode;
    params.u.batch.devPtr_base = memory;
    params.u.batch.file_offset = at;
    params.u.batch.size = size;
    return params;
}

/* The end of a batch with one entry. */
static inline CUfileIOEvents_t batch_of_one(CUfileHandle_t handle, CUfileOpcode_t opcode, void *memory, size_t size, off_t at) {
    CUfileBatchHandle_t batch;
    OK(cuFileBatchIOSetUp(&batch, 1));
    CUfileIOParams_t params = batch_entry(handle, opcode, memory, size, at);
    OK(cuFileBatchIOSubmit(batch, 1, &params, 0));
    CUfileIOEvents_t event;
    unsigned nr = 1;
    OK(cuFileBatchIOGetStatus(batch, 1, &nr, &event, NULL));
    cuFileBatchIODestroy(batch);
    return event;
}

/* ---------------------------------------------------------------------------------------------------- parameters -- */

static inline size_t size_of(CUFileSizeTConfigParameter_t param) {
    size_t value = 0;
    OK(cuFileGetParameterSizeT(param, &value));
    return value;
}

static inline bool bool_of(CUFileBoolConfigParameter_t param) {
    bool value = false;
    OK(cuFileGetParameterBool(param, &value));
    return value;
}

/* ------------------------------------------------------------------------------------------------ software GPU -- */

typedef uint64_t Address;
static void *gpu_library;

static inline void *gpu_symbol(const char *name) {
    void *symbol = dlsym(gpu_library, name);
    if (!symbol) FAIL("the software GPU has no %s", name);
    return symbol;
}

/* Calls a driver function: `answer = CU(name, (types), arguments)`. */
#define CU(name, types, ...) (((int(*) types)gpu_symbol(#name))(__VA_ARGS__))
#define CU_OK(name, types, ...) EQ(CU(name, types, __VA_ARGS__), 0)

/* Loads the driver, and makes the primary context of GPU 0 current on this thread. */
static inline void gpu_start(void) {
    if (!gpu_library) {
        gpu_library = dlopen(getenv("FOREBAY_LIBCUDA"), RTLD_NOW);
        if (!gpu_library) FAIL("%s", dlerror());
    }
    uint64_t context;
    CU_OK(cuInit, (unsigned), 0);
    CU_OK(cuDevicePrimaryCtxRetain, (uint64_t *, int), &context, 0);
    CU_OK(cuCtxSetCurrent, (uint64_t), context);
}

static inline void *gpu_alloc(size_t len) {
    Address address = 0;
    CU_OK(cuMemAlloc_v2, (Address *, size_t), &address, len);
    return (void *)address;
}

static inline void gpu_free(void *memory) { CU_OK(cuMemFree_v2, (Address), (Address)memory); }

static inline void *gpu_alloc_managed(size_t len) {
    Address address = 0;
    CU_OK(cuMemAllocManaged, (Address *, size_t, unsigned), &address, len, 1);
    return (void *)address;
}

static inline void *gpu_alloc_pool(size_t len) {
    Address address = 0;
    CU_OK(cuMemAllocAsync, (Address *, size_t, uint64_t), &address, len, 0);
    CU_OK(cuStreamSynchronize, (uint64_t), 0);
    return (void *)address;
}

static inline void *gpu_alloc_host(size_t len) {
    void *address = NULL;
    CU_OK(cuMemHostAlloc, (void **, size_t, unsigned), &address, len, 0);
    return address;
}

/* Reserved addresses for two physical pieces side by side, of which the first `mapped` are. */
static inline void *gpu_map_halves(size_t half, int mapped) {
    Address base = 0;
    int prop[8] = {1, 0, 1, 0, 0, 0, 0, 0};
    int access[3] = {1, 0, 3};
    CU_OK(cuMemAddressReserve, (Address *, size_t, size_t, Address, uint64_t), &base, 2 * half, 0, 0, 0);
    for (int i = 0; i < mapped; i++) {
        uint64_t memory = 0;
        Address at = base + (Address)i * half;
        CU_OK(cuMemCreate, (uint64_t *, size_t, void *, uint64_t), &memory, half, prop, 0);
        CU_OK(cuMemMap, (Address, size_t, size_t, uint64_t, uint64_t), at, half, 0, memory, 0);
        CU_OK(cuMemSetAccess, (Address, size_t, void *, size_t), at, half, access, 1);
        CU_OK(cuMemRelease, (uint64_t), memory);
    }
    return (void *)base;
}

static inline void *gpu_alloc_virtual(size_t len) {
    return gpu_map_halves((len / 2 + 2 * MIB - 1) / (2 * MIB) * (2 * MIB), 2);
}

static inline void gpu_peek(void *address, unsigned char *bytes, size_t len, int write) {
    /* A range may lie in two regions: page by page. */
    for (size_t at = 0; at < len;) {
        size_t part = 4096 - ((Address)address + at) % 4096;
        if (part > len - at) part = len - at;
        CU_OK(fake_cuda_peek, (Address, unsigned char *, size_t, int), (Address)address + at, bytes + at, part, write);
        at += part;
    }
}

/* Device memory cannot be touched by the CPU; these can. */
static inline void gpu_fill(void *address, uint64_t key, uint64_t at, size_t len) {
    unsigned char *bytes = new_bytes(key, at, len);
    gpu_peek(address, bytes, len, 1);
    free(bytes);
}

static inline void gpu_zero(void *address, size_t len) {
    unsigned char *bytes = calloc(1, len);
    gpu_peek(address, bytes, len, 1);
    free(bytes);
}

#define GPU_SAME(address, key, at, len) \
    do { \
        size_t len_ = (len); \
        unsigned char *there_ = malloc(len_ ? len_ : 1); \
        gpu_peek((address), there_, len_, 0); \
        SAME(there_, key, at, len_); \
        free(there_); \
    } while (0)

static inline CUstream gpu_stream(unsigned flags) {
    uint64_t stream = 0;
    CU_OK(cuStreamCreate, (uint64_t *, unsigned), &stream, flags);
    return (CUstream)stream;
}

static inline void gpu_wait(CUstream stream) { CU_OK(cuStreamSynchronize, (uint64_t), (uint64_t)stream); }

static inline void gpu_host_function(CUstream stream, void (*function)(void *), void *data) {
    CU_OK(cuLaunchHostFunc, (uint64_t, void (*)(void *), void *), (uint64_t)stream, function, data);
}

/* The driver's call or queued work of that name fails `times` times with that code, after `after` that do not. */
static inline void gpu_fails(const char *name, int code, uint64_t after, uint64_t times) {
    ((void (*)(const char *, int, uint64_t, uint64_t))gpu_symbol("fake_cuda_fail_next"))(name, code, after, times);
}

static inline void gpu_heals(void) { ((void (*)(void))gpu_symbol("fake_cuda_reset"))(); }

#endif
