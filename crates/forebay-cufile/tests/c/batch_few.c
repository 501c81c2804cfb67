/* Batches of few small entries of several threads, copied by the resident kernel: events, cancellations (by another thread, too) and
 * batches that are destroyed at once. What a call gave up or waited for does not land later. */
#include <stdatomic.h>

#include "check.h"

enum { THREADS = 4, ENTRIES = 8, ROUNDS = 60 };
#define SIZE (4 * KIB)
#define LEN (1 * MIB)

static CUfileHandle_t handle;
static CUfileBatchHandle_t shared;
static atomic_int over;

static CUfileBatchHandle_t set_up(void) {
    CUfileBatchHandle_t batch;
    OK(cuFileBatchIOSetUp(&batch, ENTRIES));
    return batch;
}

/* Starts entries that read from `at` on, a byte of a page further each. */
static void submit(CUfileBatchHandle_t batch, char *device, size_t at) {
    CUfileIOParams_t params[ENTRIES];
    memset(params, 0, sizeof params);
    for (int i = 0; i < ENTRIES; i++) {
        params[i].mode = CUFILE_BATCH;
        params[i].fh = handle;
        params[i].opcode = CUFILE_READ;
        params[i].u.batch.devPtr_base = device;
        params[i].u.batch.devPtr_offset = (off_t)((size_t)i * SIZE);
        params[i].u.batch.file_offset = (off_t)(at + (size_t)i * (SIZE + 1));
        params[i].u.batch.size = SIZE;
    }
    OK(cuFileBatchIOSubmit(batch, ENTRIES, params, 0));
}

static void has_read(char *device, size_t at) {
    for (size_t i = 0; i < ENTRIES; i++) GPU_SAME(device + i * SIZE, 61, at + i * (SIZE + 1), SIZE);
}

/* Takes what events there are once all entries are over; how many. */
static unsigned take(CUfileBatchHandle_t batch) {
    CUfileIOEvents_t events[ENTRIES];
    unsigned count = ENTRIES;
    OK(cuFileBatchIOGetStatus(batch, ENTRIES, &count, events, NULL));
    for (unsigned i = 0; i < count; i++) {
        EQ(events[i].status, CUFILE_COMPLETE);
        EQ(events[i].ret, SIZE);
    }
    return count;
}

/* The memory is the program's: nothing lands in it. */
static void nothing_lands(char *device) {
    gpu_fill(device, 62, 0, ENTRIES * SIZE);
    usleep(500);
    GPU_SAME(device, 62, 0, ENTRIES * SIZE);
}

static void *work(void *argument) {
    size_t me = (size_t)(intptr_t)argument;
    gpu_start();
    char *device = gpu_alloc(ENTRIES * SIZE);
    CUfileBatchHandle_t batch = set_up();
    for (size_t round = 0; round < ROUNDS; round++) {
        size_t at = me * 100000 + round * 77;
        gpu_zero(device, ENTRIES * SIZE);
        submit(batch, device, at);
        if (round % 3 == 1) {
            OK(cuFileBatchIOCancel(batch));
            nothing_lands(device);
        } else if (round % 3 == 2) {
            cuFileBatchIODestroy(batch);
            nothing_lands(device);
            batch = set_up();
        } else {
            EQ(take(batch), ENTRIES);
            has_read(device, at);
        }
    }
    cuFileBatchIODestroy(batch);
    gpu_free(device);
    return NULL;
}

static void *cancel(void *unused) {
    (void)unused;
    while (!atomic_load(&over)) {
        OK(cuFileBatchIOCancel(shared));
        usleep(50);
    }
    return NULL;
}

/* Another thread gives up what this one submits: it has all events or none. */
static void cancelled_meanwhile(void) {
    char *device = gpu_alloc(ENTRIES * SIZE);
    shared = set_up();
    pthread_t thread;
    EQ(pthread_create(&thread, NULL, cancel, NULL), 0);
    for (size_t round = 0; round < 4 * ROUNDS; round++) {
        submit(shared, device, round * 91);
        unsigned count = take(shared);
        CHECK(count == 0 || count == ENTRIES);
        if (count) has_read(device, round * 91);
        nothing_lands(device);
    }
    atomic_store(&over, 1);
    EQ(pthread_join(thread, NULL), 0);
    cuFileBatchIODestroy(shared);
    gpu_free(device);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    gpu_start();
    handle = register_fd(new_file(argv[1], "data", 61, LEN, 0));
    uint64_t lives = 0;
    for (int again = 0; again < 30 && !lives; again++) {
        pthread_t threads[THREADS];
        for (intptr_t i = 0; i < THREADS; i++) EQ(pthread_create(&threads[i], NULL, work, (void *)i), 0);
        for (int i = 0; i < THREADS; i++) EQ(pthread_join(threads[i], NULL), 0);
        /* One life is the trial. */
        lives = ((uint64_t (*)(const char *))gpu_symbol("fake_cuda_calls"))("async:resident");
        lives = lives > 1 ? lives : 0;
    }
    CHECK(lives);
    cancelled_meanwhile();
    cuFileHandleDeregister(handle);
    return 0;
}
