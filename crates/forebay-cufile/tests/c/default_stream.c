/*
 * Programs queue work on a default stream and call at once. What they queued comes before the bytes that the call moves:
 * on the legacy stream and on the calling thread's own, small and large, read and written, one by one and in batches.
 *
 * A host function holds the stream up until the gate is opened: a call that does not wait for it would end before.
 */
#include <stdatomic.h>

#include "check.h"

#define SIZE (96 * MIB)
#define LEGACY ((CUstream)0)
#define PER_THREAD ((CUstream)2)

static atomic_int gate;

static void wait_for_gate(void *nothing) {
    (void)nothing;
    while (!atomic_load(&gate)) usleep(200);
}

/* Work that takes until the gate is opened. */
static void hold_up(CUstream stream) {
    atomic_store(&gate, 0);
    gpu_host_function(stream, wait_for_gate, NULL);
}

static void gpu_set(char *device, unsigned char value, size_t len, CUstream stream) {
    CU_OK(cuMemsetD8Async, (Address, unsigned char, size_t, uint64_t), (Address)device, value, len, (uint64_t)stream);
}

/* As cudaMemcpy of pageable memory: the bytes are taken before it returns, and arrive later. */
static void gpu_copy_in(char *device, const unsigned char *bytes, size_t len, CUstream stream) {
    CU_OK(cuMemcpyHtoDAsync_v2, (Address, const void *, size_t, uint64_t), (Address)device, bytes, len, (uint64_t)stream);
}

static void *open_gate_later(void *nothing) {
    usleep(30000);
    atomic_store(&gate, 1);
    return nothing;
}

static int fd;
static CUfileHandle_t handle;
static char *device;

struct call {
    pthread_t thread;
    int writes;
    CUstream queued_on;
    char *memory;
    size_t len;
    off_t offset;
    uint64_t key;
    int holds_up;
    atomic_int queued, done;
    ssize_t result;
};

static void *run_call(void *argument) {
    struct call *call = argument;
    gpu_start();
    if (call->holds_up) hold_up(call->queued_on);
    if (call->writes) {
        unsigned char *bytes = new_bytes(call->key, (uint64_t)call->offset, call->len);
        gpu_copy_in(call->memory, bytes, call->len, call->queued_on);
        free(bytes);
    } else {
        gpu_set(call->memory, 0xEE, call->len, call->queued_on);
    }
    atomic_store(&call->queued, 1);
    call->result = call->writes ? cuFileWrite(handle, call->memory, call->len, call->offset, 0)
                                : cuFileRead(handle, call->memory, call->len, call->offset, 0);
    atomic_store(&call->done, 1);
    return NULL;
}

static void start(struct call *call) {
    EQ(pthread_create(&call->thread, NULL, run_call, call), 0);
    while (!atomic_load(&call->queued)) usleep(100);
}

static void finish(struct call *call) {
    EQ(pthread_join(call->thread, NULL), 0);
    EQ(call->result, call->len);
    if (call->writes) file_has(fd, call->key, (uint64_t)call->offset, call->offset, call->len);
    GPU_SAME(call->memory, call->key, (uint64_t)call->offset, call->len);
}

/* One call behind held-up work. */
static void waits(CUstream queued_on, int writes, size_t len, uint64_t key) {
    struct call call = {.writes = writes, .queued_on = queued_on, .memory = device, .len = len, .key = key, .holds_up = 1};
    start(&call);
    usleep(30000);
    if (atomic_load(&call.done)) FAIL("a %s of %zu bytes did not wait for the stream %p", writes ? "write" : "read", len, (void *)queued_on);
    atomic_store(&gate, 1);
    finish(&call);
}

/* Many small calls at once behind one held-up stream. */
static void many_wait(void) {
    enum { CALLERS = 12 };
    struct call calls[CALLERS];
    memset(calls, 0, sizeof calls);
    hold_up(LEGACY);
    for (int i = 0; i < CALLERS; i++) {
        calls[i] = (struct call){.queued_on = LEGACY, .memory = device + (size_t)i * MIB, .len = 4096, .offset = i * 8192, .key = 51};
        start(&calls[i]);
    }
    usleep(50000);
    for (int i = 0; i < CALLERS; i++) CHECK(!atomic_load(&calls[i].done));
    atomic_store(&gate, 1);
    for (int i = 0; i < CALLERS; i++) finish(&calls[i]);
}

static void batch_waits(int writes, size_t len, uint64_t key) {
    enum { ENTRIES = 4 };
    CUfileBatchHandle_t batch;
    CUfileIOParams_t entries[ENTRIES];
    CUfileIOEvents_t events[ENTRIES];
    OK(cuFileBatchIOSetUp(&batch, ENTRIES));
    hold_up(LEGACY);
    for (int i = 0; i < ENTRIES; i++) {
        char *memory = device + (size_t)i * len;
        if (writes) {
            unsigned char *bytes = new_bytes(key, (size_t)i * len, len);
            gpu_copy_in(memory, bytes, len, LEGACY);
            free(bytes);
        } else {
            gpu_set(memory, 0xEE, len, LEGACY);
        }
        memset(&entries[i], 0, sizeof entries[i]);
        entries[i].mode = CUFILE_BATCH;
        entries[i].fh = handle;
        entries[i].opcode = writes ? CUFILE_WRITE : CUFILE_READ;
        entries[i].u.batch.devPtr_base = memory;
        entries[i].u.batch.file_offset = (off_t)i * (off_t)len;
        entries[i].u.batch.size = len;
    }
    OK(cuFileBatchIOSubmit(batch, ENTRIES, entries, 0));
    unsigned count = ENTRIES;
    struct timespec moment = {0, 30000000};
    OK(cuFileBatchIOGetStatus(batch, 1, &count, events, &moment));
    if (count != 0) FAIL("a batch of %d × %zu bytes did not wait", ENTRIES, len);
    atomic_store(&gate, 1);
    count = ENTRIES;
    OK(cuFileBatchIOGetStatus(batch, ENTRIES, &count, events, NULL));
    EQ(count, ENTRIES);
    for (int i = 0; i < ENTRIES; i++) EQ(events[i].ret, len);
    cuFileBatchIODestroy(batch);
    for (int i = 0; i < ENTRIES; i++) GPU_SAME(device + (size_t)i * len, key, (size_t)i * len, len);
    if (writes) file_has(fd, key, 0, 0, ENTRIES * len);
}

/* Vectors, the first part of which is host memory. */
static void vector_waits(int writes, uint64_t key) {
    unsigned char *host = new_bytes(key, 0, 8192);
    CUfileIOVec_t parts[2] = {{host, 8192}, {device, 3 * MIB}};
    hold_up(LEGACY);
    if (writes) {
        unsigned char *bytes = new_bytes(key, 8192, 3 * MIB);
        gpu_copy_in(device, bytes, 3 * MIB, LEGACY);
        free(bytes);
    } else {
        gpu_set(device, 0xEE, 3 * MIB, LEGACY);
    }
    pthread_t opener;
    EQ(pthread_create(&opener, NULL, open_gate_later, NULL), 0);
    ssize_t moved = writes ? cuFileWritev(handle, parts, 2, 0, 0) : cuFileReadv(handle, parts, 2, 0, 0);
    EQ(moved, 8192 + 3 * MIB);
    CHECK(atomic_load(&gate));
    EQ(pthread_join(opener, NULL), 0);
    SAME(host, key, 0, 8192);
    GPU_SAME(device, key, 8192, 3 * MIB);
    if (writes) file_has(fd, key, 0, 0, 8192 + 3 * MIB);
    free(host);
}

/* A request cancelled while it waits for the stream does not wait any more. */
static void a_cancelled_batch_does_not_wait(void) {
    CUfileBatchHandle_t batch;
    CUfileIOParams_t entry = batch_entry(handle, CUFILE_READ, device, 3 * MIB, 0);
    OK(cuFileBatchIOSetUp(&batch, 1));
    gpu_zero(device, 3 * MIB);
    hold_up(LEGACY);
    OK(cuFileBatchIOSubmit(batch, 1, &entry, 0));
    usleep(30000);
    OK(cuFileBatchIOCancel(batch));
    CHECK(!atomic_load(&gate));
    cuFileBatchIODestroy(batch);
    atomic_store(&gate, 1);
    gpu_wait(LEGACY);
    unsigned char bytes[4096], zeros[4096] = {0};
    gpu_peek(device, bytes, sizeof bytes, 0);
    CHECK(memcmp(bytes, zeros, sizeof bytes) == 0);
}

static void order(void) {
    size_t sizes[] = {4096, 100 * KIB, 1 * MIB, 3 * MIB, 20 * MIB};
    /* First from the page cache, then, as far as pages get pinned, in place. */
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 5; i++) {
            waits(LEGACY, 0, sizes[i], 51);
            waits(PER_THREAD, 0, sizes[i], 51);
        }
        many_wait();
        batch_waits(0, 4096, 51);
        batch_waits(0, 3 * MIB, 51);
        vector_waits(0, 51);
        a_cancelled_batch_does_not_wait();
        usleep(50000);
        for (int pass = 0; pass < 4; pass++) EQ(cuFileRead(handle, device, SIZE, 0, 0), SIZE);
    }
    uint64_t key = 60;
    for (int i = 0; i < 5; i++) {
        waits(LEGACY, 1, sizes[i], key++);
        waits(PER_THREAD, 1, sizes[i], key++);
    }
    batch_waits(1, 4096, key++);
    batch_waits(1, 3 * MIB, key++);
    vector_waits(1, key++);
}

/* Nothing is ordered when the program says that it need not be. */
static void unordered(void) {
    size_t sizes[] = {4096, 1 * MIB, 20 * MIB};
    for (int i = 0; i < 3; i++) {
        hold_up(LEGACY);
        gpu_set(device, 0xEE, sizes[i], LEGACY);
        EQ(cuFileRead(handle, device, sizes[i], 0, 0), sizes[i]);
        GPU_SAME(device, 51, 0, sizes[i]);
        atomic_store(&gate, 1);
        gpu_wait(LEGACY);
        unsigned char byte;
        gpu_peek(device, &byte, 1, 0);
        EQ(byte, 0xEE);
    }
}

/* While a blocking stream is captured nobody may ask what stands on the legacy one: calls go on, and so does the capture. */
static void captured(void) {
    size_t sizes[] = {4096, 1 * MIB, 20 * MIB};
    for (int i = 0; i < 3; i++) {
        CUstream stream = gpu_stream(0);
        hold_up(LEGACY);
        CU_OK(cuStreamBeginCapture_v2, (uint64_t, int), (uint64_t)stream, 0);
        gpu_set(device + 50 * MIB, 1, 64, stream);
        EQ(cuFileRead(handle, device, sizes[i], 0, 0), sizes[i]);
        GPU_SAME(device, 51, 0, sizes[i]);
        atomic_store(&gate, 1);
        uint64_t graph = 99;
        CU_OK(cuStreamEndCapture, (uint64_t, uint64_t *), (uint64_t)stream, &graph);
        EQ(graph, 1);
        gpu_wait(LEGACY);
    }
    /* The calling thread's own default stream. */
    CU_OK(cuStreamBeginCapture_v2, (uint64_t, int), (uint64_t)PER_THREAD, 0);
    gpu_set(device + 50 * MIB, 1, 64, PER_THREAD);
    EQ(cuFileRead(handle, device, 4096, 8192, 0), 4096);
    GPU_SAME(device, 51, 8192, 4096);
    uint64_t graph = 99;
    CU_OK(cuStreamEndCapture, (uint64_t, uint64_t *), (uint64_t)PER_THREAD, &graph);
    EQ(graph, 1);
}

/* Registered memory: what sets and copies it on the device is done when the call returns. */
static void registered_memory_is_synchronous(void) {
    char *memory = gpu_alloc(1 * MIB);
    OK(cuFileBufRegister(memory, 1 * MIB, 0));
    for (int round = 0; round < 20; round++) {
        gpu_set(memory, (unsigned char)round, 1 * MIB, LEGACY);
        unsigned char byte;
        gpu_peek(memory + 1 * MIB - 1, &byte, 1, 0);
        EQ(byte, round);
    }
    OK(cuFileBufDeregister(memory));
    gpu_free(memory);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    const char *which = getenv("CASE");
    gpu_start();
    fd = new_file(argv[1], "data", 51, SIZE, 0);
    EQ(fsync(fd), 0);
    handle = register_fd(fd);
    device = gpu_alloc(SIZE);
    if (!which) {
        order();
        registered_memory_is_synchronous();
    } else if (strcmp(which, "none") == 0) {
        unordered();
    } else {
        captured();
    }
    cuFileHandleDeregister(handle);
    OK(cuFileDriverClose());
    return 0;
}
