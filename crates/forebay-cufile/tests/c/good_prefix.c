/* A part of a long transfer meets the file's end for a moment, or finds no room: what counts ends there, by every call. */
#include "check.h"
#include <sys/syscall.h>
#include <sys/uio.h>

#define LEN (12 * MIB)
#define SLOT (2 * MIB)
#define MARK 0xA7

/* The byte of the file at which calls meet the end, or a full disk. They are the program's own: the library finds them first. */
static off_t hole = -1;

static int meets(off_t offset, size_t len) { return offset <= hole && hole < offset + (off_t)len; }

ssize_t pread(int fd, void *bytes, size_t len, off_t offset) {
    return meets(offset, len) ? 0 : syscall(SYS_pread64, fd, bytes, len, offset);
}

ssize_t pread64(int fd, void *bytes, size_t len, off64_t offset) { return pread(fd, bytes, len, offset); }

ssize_t preadv2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    return meets(offset, parts->iov_len) ? 0 : syscall(SYS_preadv2, fd, parts, count, offset, 0, flags);
}

ssize_t pwrite(int fd, const void *bytes, size_t len, off_t offset) {
    if (!meets(offset, len)) return syscall(SYS_pwrite64, fd, bytes, len, offset);
    errno = ENOSPC;
    return -1;
}

ssize_t pwrite64(int fd, const void *bytes, size_t len, off64_t offset) { return pwrite(fd, bytes, len, offset); }

static ssize_t by_batch(CUfileHandle_t handle, char *memory, CUfileOpcode_t opcode) {
    CUfileIOEvents_t event = batch_of_one(handle, opcode, memory, LEN, 0);
    return event.status == CUFILE_COMPLETE ? (ssize_t)event.ret : -1;
}

static ssize_t by_stream(CUfileHandle_t handle, char *memory, int writes) {
    CUstream stream = gpu_stream(0);
    size_t size = LEN;
    off_t at = 0, skip = 0;
    ssize_t done = -77;
    if (writes) OK(cuFileWriteAsync(handle, memory, &size, &at, &skip, &done, stream));
    else OK(cuFileReadAsync(handle, memory, &size, &at, &skip, &done, stream));
    gpu_wait(stream);
    return done;
}

/* Two pieces of memory: the second begins in the third slot. */
static ssize_t by_vector(CUfileHandle_t handle, char *memory, int writes) {
    CUfileIOVec_t parts[] = {{memory, 5 * MIB}, {memory + 5 * MIB, LEN - 5 * MIB}};
    return writes ? cuFileWritev(handle, parts, 2, 0, 0) : cuFileReadv(handle, parts, 2, 0, 0);
}

enum { CALL, BATCH, STREAM, VECTOR, WAYS };

static ssize_t move(int way, CUfileHandle_t handle, char *memory, int writes) {
    switch (way) {
        case CALL: return writes ? cuFileWrite(handle, memory, LEN, 0, 0) : cuFileRead(handle, memory, LEN, 0, 0);
        case BATCH: return by_batch(handle, memory, writes ? CUFILE_WRITE : CUFILE_READ);
        case STREAM: return by_stream(handle, memory, writes);
        default: return by_vector(handle, memory, writes);
    }
}

/* The length of a good prefix, if the transfer stopped at the hole: at most `part` before it. */
static void is_prefix(int way, ssize_t done, int writes, size_t part) {
    if (writes && hole < (off_t)SLOT) { /* nothing has found room */
        if (done != -1) FAIL("write %d: %zd", way, done);
        return;
    }
    if (done < 0 || done > hole || hole - done >= (off_t)part) FAIL("%s %d: %zd count, and the hole is at %lld", writes ? "write" : "read", way, done, (long long)hole);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    gpu_start();
    int fd = new_file(argv[1], "data", 41, LEN, 0);
    CUfileHandle_t handle = register_fd(fd);
    char *device = gpu_alloc(LEN), *host = malloc(LEN);
    unsigned char *there = malloc(LEN);
    off_t holes[] = {0, 3 * MIB, 5 * MIB + 1, LEN - 1};
    for (int way = 0; way < WAYS; way++) {
        for (int i = 0; i < 4; i++) {
            memset(host, MARK, LEN);
            gpu_peek(device, (unsigned char *)host, LEN, 1);
            hole = holes[i];
            ssize_t done = move(way, handle, device, 0), into_host = move(way, handle, host, 0);
            is_prefix(way, done, 0, SLOT);
            is_prefix(way, into_host, 0, LEN); /* one call may read all of it */
            hole = -1;
            gpu_peek(device, there, LEN, 0);
            SAME(there, 41, 0, done);
            SAME((unsigned char *)host, 41, 0, into_host);
        }
    }
    gpu_fill(device, 42, 0, LEN);
    for (int way = 0; way < WAYS; way++) {
        for (int i = 0; i < 4; i++) {
            hole = holes[i];
            ssize_t done = move(way, handle, device, 1);
            is_prefix(way, done, 1, SLOT);
            hole = -1;
            if (done > 0) file_has(fd, 42, 0, 0, done);
        }
    }
    cuFileHandleDeregister(handle);
    return 0;
}
