/* The functions of the CUDA runtime (13) that the programs of this folder call, over the driver's functions that the
 * software GPU (fake-cuda) has. The real runtime does not start there: it wants tables that only NVIDIA's driver has.
 *
 * As in the real one, cudaMemset of device memory returns at once, and cudaMemcpy from pageable memory once the bytes
 * are copied away: what follows on other streams may overtake both.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int Error;
typedef uint64_t Address;
typedef void *Stream;

extern int cuInit(unsigned), cuDeviceGet(int *, int), cuDevicePrimaryCtxRetain(void **, int);
extern int cuCtxGetCurrent(void **), cuCtxSetCurrent(void *), cuCtxSynchronize(void), cuDeviceGetCount(int *);
extern int cuMemAlloc_v2(Address *, size_t), cuMemFree_v2(Address), cuMemAllocManaged(Address *, size_t, unsigned);
extern int cuMemHostAlloc(void **, size_t, unsigned), cuMemFreeHost(void *);
extern int cuMemcpyHtoDAsync_v2(Address, const void *, size_t, Stream);
extern int cuMemcpyDtoHAsync_v2(void *, Address, size_t, Stream);
extern int cuMemcpyDtoDAsync_v2(Address, Address, size_t, Stream), cuMemsetD8Async(Address, unsigned char, size_t, Stream);
extern int cuLaunchHostFunc(Stream, void (*)(void *), void *), cuPointerGetAttribute(void *, int, Address);
extern int cuStreamCreate(Stream *, unsigned), cuStreamSynchronize(Stream), cuStreamDestroy_v2(Stream);
extern int cuGetErrorName(int, const char **), cuGetErrorString(int, const char **);

enum { MEMORY_TYPE = 2, IS_MANAGED = 8, DEVICE_ORDINAL = 9 };
enum { UNREGISTERED, HOST, DEVICE, MANAGED };
enum { HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE };
enum { NO_CONTEXT = 201, INVALID_VALUE = 1 };

struct Attributes {
    int type, device;
    void *device_pointer, *host_pointer;
    long reserved[8];
};

static __thread Error last;

static Error done(int code) {
    if (code) last = code;
    return code;
}

/* The primary context of GPU 0, made current on threads that have none. */
static int start(void) {
    void *context = NULL;
    int device, code;
    if (cuCtxGetCurrent(&context) == 0 && context) return 0;
    if ((code = cuInit(0)) || (code = cuDeviceGet(&device, 0))) return code;
    if ((code = cuDevicePrimaryCtxRetain(&context, device))) return code;
    return cuCtxSetCurrent(context);
}

static int type_of(const void *pointer) {
    unsigned type = 0, managed = 0;
    if (cuPointerGetAttribute(&type, MEMORY_TYPE, (Address)pointer)) return UNREGISTERED;
    if (cuPointerGetAttribute(&managed, IS_MANAGED, (Address)pointer) == 0 && managed) return MANAGED;
    return (int)type;
}

static int on_gpu(const void *pointer) { return type_of(pointer) >= DEVICE; }

static int copy(void *to, const void *from, size_t size, Stream stream) {
    if (size == 0) return 0;
    if (on_gpu(to) && on_gpu(from)) return cuMemcpyDtoDAsync_v2((Address)to, (Address)from, size, stream);
    if (on_gpu(from)) return cuMemcpyDtoHAsync_v2(to, (Address)from, size, stream);
    if (on_gpu(to)) {
        if (type_of(from) == HOST) return cuMemcpyHtoDAsync_v2((Address)to, from, size, stream);
        void *staged = memcpy(malloc(size), from, size);
        int code = cuMemcpyHtoDAsync_v2((Address)to, staged, size, stream);
        return code ? code : cuLaunchHostFunc(stream, free, staged);
    }
    memmove(to, from, size);
    return 0;
}

Error cudaSetDevice(int device) { return done(device ? INVALID_VALUE : start()); }

Error cudaGetDevice(int *device) {
    *device = 0;
    return 0;
}

Error cudaGetDeviceCount(int *count) {
    int code = cuInit(0);
    return done(code ? code : cuDeviceGetCount(count));
}

Error cudaMalloc(void **pointer, size_t size) {
    int code = start();
    return done(code ? code : cuMemAlloc_v2((Address *)pointer, size));
}

Error cudaMallocManaged(void **pointer, size_t size, unsigned flags) {
    int code = start();
    return done(code ? code : cuMemAllocManaged((Address *)pointer, size, flags));
}

Error cudaHostAlloc(void **pointer, size_t size, unsigned flags) {
    int code = start();
    return done(code ? code : cuMemHostAlloc(pointer, size, flags));
}

Error cudaMallocHost(void **pointer, size_t size) { return cudaHostAlloc(pointer, size, 0); }

Error cudaFree(void *pointer) {
    int code = start();
    if (code == 0) code = cuCtxSynchronize();
    return done(code || !pointer ? code : cuMemFree_v2((Address)pointer));
}

Error cudaFreeHost(void *pointer) {
    int code = start();
    return done(code || !pointer ? code : cuMemFreeHost(pointer));
}

Error cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, Stream stream) {
    int code = start();
    (void)kind;
    return done(code ? code : copy(to, from, size, stream));
}

Error cudaMemcpy(void *to, const void *from, size_t size, int kind) {
    int code = cudaMemcpyAsync(to, from, size, kind, NULL);
    int is_late = !on_gpu(from) && type_of(from) != HOST;
    return done(code || is_late ? code : cuStreamSynchronize(NULL));
}

Error cudaMemset(void *pointer, int value, size_t size) {
    int code = start();
    if (code || size == 0) return done(code);
    code = cuMemsetD8Async((Address)pointer, (unsigned char)value, size, NULL);
    return done(code || type_of(pointer) == DEVICE ? code : cuStreamSynchronize(NULL));
}

Error cudaPointerGetAttributes(struct Attributes *attributes, const void *pointer) {
    int code = start();
    if (code) return done(code);
    int type = type_of(pointer);
    void *there = type == UNREGISTERED ? NULL : (void *)pointer;
    *attributes = (struct Attributes){ .type = type, .device = type == UNREGISTERED ? -2 : 0 };
    attributes->device_pointer = there;
    attributes->host_pointer = type == DEVICE ? NULL : (void *)pointer;
    return 0;
}

Error cudaDeviceSynchronize(void) {
    int code = start();
    return done(code ? code : cuCtxSynchronize());
}

Error cudaStreamCreate(Stream *stream) {
    int code = start();
    return done(code ? code : cuStreamCreate(stream, 0));
}

Error cudaStreamSynchronize(Stream stream) {
    int code = start();
    return done(code ? code : cuStreamSynchronize(stream));
}

Error cudaStreamDestroy(Stream stream) { return done(cuStreamDestroy_v2(stream)); }

Error cudaGetLastError(void) {
    Error code = last;
    last = 0;
    return code;
}

const char *cudaGetErrorName(Error code) {
    const char *name = "unknown";
    cuGetErrorName(code, &name);
    return name;
}

const char *cudaGetErrorString(Error code) {
    const char *text = "unknown";
    cuGetErrorString(code, &text);
    return text;
}
