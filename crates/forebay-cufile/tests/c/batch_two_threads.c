/* One thread submits, another takes the events: nobody sleeps through what it waits for. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "check.h"

enum { ROUNDS = 4000 };

static CUfileBatchHandle_t batch;
static atomic_long taken;

static void *take(void *unused) {
    (void)unused;
    while (atomic_load(&taken) < ROUNDS) {
        unsigned count = 8;
        CUfileIOEvents_t events[8];
        OK(cuFileBatchIOGetStatus(batch, 1, &count, events, NULL));
        atomic_fetch_add(&taken, count);
    }
    return NULL;
}

int main(int argc, char **argv) {
    (void)argc;
    static char memory[4096];
    CUfileHandle_t handle = register_fd(new_file(argv[1], "data", 31, 100000, 0));
    OK(cuFileBatchIOSetUp(&batch, 8));
    pthread_t taker;
    EQ(pthread_create(&taker, NULL, take, NULL), 0);
    for (int round = 0; round < ROUNDS; round++) {
        CUfileIOParams_t entry = {0};
        entry.mode = CUFILE_BATCH;
        entry.fh = handle;
        entry.opcode = CUFILE_READ;
        entry.u.batch.devPtr_base = memory;
        entry.u.batch.size = sizeof memory;
        OK(cuFileBatchIOSubmit(batch, 1, &entry, 0));
        while (atomic_load(&taken) <= round) sched_yield();
    }
    EQ(pthread_join(taker, NULL), 0);
    cuFileBatchIODestroy(batch);
    return 0;
}
