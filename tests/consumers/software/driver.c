/* Functions of the CUDA driver that KvikIO's C++ library looks up and the software GPU (fake-cuda) lacks. Linked with
 * it as libcuda.so.1, this is a driver that has both.
 */
#include <stddef.h>
#include <stdint.h>

typedef uint64_t Address;
typedef void *Stream;

extern int cuCtxCreate_v2(void **, unsigned, int), cuPointerGetAttribute(void *, int, Address);
extern int cuMemcpyHtoDAsync_v2(Address, const void *, size_t, Stream);
extern int cuMemcpyDtoHAsync_v2(void *, Address, size_t, Stream);
extern int cuMemcpyDtoDAsync_v2(Address, Address, size_t, Stream);

enum { MEMORY_TYPE = 2, RANGE_START = 11, RANGE_SIZE = 12, DEVICE = 2 };

static int on_gpu(Address address) {
    unsigned type = 0;
    return cuPointerGetAttribute(&type, MEMORY_TYPE, address) == 0 && type == DEVICE;
}

int cuCtxCreate_v4(void **context, void *parameters, unsigned flags, int device) {
    (void)parameters;
    return cuCtxCreate_v2(context, flags, device);
}

int cuMemGetAddressRange_v2(Address *start, size_t *size, Address address) {
    int code = cuPointerGetAttribute(start, RANGE_START, address);
    return code ? code : cuPointerGetAttribute(size, RANGE_SIZE, address);
}

int cuMemcpyAsync(Address to, Address from, size_t size, Stream stream) {
    if (!on_gpu(to)) return cuMemcpyDtoHAsync_v2((void *)to, from, size, stream);
    if (!on_gpu(from)) return cuMemcpyHtoDAsync_v2(to, (const void *)from, size, stream);
    return cuMemcpyDtoDAsync_v2(to, from, size, stream);
}

int cuMemcpyBatchAsync_v2(Address *to, Address *from, size_t *sizes, size_t count, void *attributes, size_t *indices,
                          size_t attribute_count, Stream stream) {
    int code = 0;
    (void)attributes, (void)indices, (void)attribute_count;
    for (size_t i = 0; i < count && code == 0; i++) code = cuMemcpyAsync(to[i], from[i], sizes[i], stream);
    return code;
}
