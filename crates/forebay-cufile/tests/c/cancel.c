/*
 * pthread_cancel while a call runs: the call ends as if nothing were, and the thread at its next cancellation point. No
 * lock stays locked, no memory is in use.
 */
#include "check.h"

static CUfileHandle_t handle;
static char *device;
static volatile int is_inside, has_returned;

/* A state or type that a call changed would be the program's trouble. */
static void unchanged(void) {
    int state, type;
    EQ(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state), 0);
    EQ(pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type), 0);
    EQ(state, PTHREAD_CANCEL_ENABLE);
    EQ(type, PTHREAD_CANCEL_DEFERRED);
    EQ(cuFileRead(handle, device, 4096, 0, 0), 4096);
    EQ(cuFileUseCount(), 1);
    EQ(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state), 0);
    EQ(state, PTHREAD_CANCEL_DISABLE);
}

static CUfileBatchHandle_t batch;

/* All sorts of calls, over and over. None of them is a place to be cancelled at. */
static void calls(int kind, unsigned round) {
    static __thread unsigned char bytes[300000];
    CUfileIOParams_t params;
    CUfileIOEvents_t event;
    struct timespec time = {0, 1000000};
    unsigned nr = 1;
    switch (kind) {
    case 0: EQ(cuFileRead(handle, device, 1 * MIB, round % 4096, 0), 1 * MIB); break;
    case 1: EQ(cuFileRead(handle, device, 4096, round % 4096 * 4096, 0), 4096); break;
    case 2: EQ(cuFileRead(handle, bytes, sizeof bytes, round % 4096, 0), sizeof bytes); break;
    case 3: EQ(cuFileWrite(handle, device, 100000, 20 * MIB, 0), 100000); break;
    case 4:
        OK(cuFileDriverOpen());
        OK(cuFileDriverClose());
        OK(cuFileBufRegister(device + 2 * MIB, 65536, 0));
        OK(cuFileBufDeregister(device + 2 * MIB));
        break;
    default:
        memset(&params, 0, sizeof params);
        params.mode = CUFILE_BATCH;
        params.fh = handle;
        params.u.batch.devPtr_base = device;
        params.u.batch.size = 300000;
        OK(cuFileBatchIOSubmit(batch, 1, &params, 0));
        OK(cuFileBatchIOGetStatus(batch, 1, &nr, &event, NULL));
        EQ(nr, 1);
        OK(cuFileBatchIOGetStatus(batch, 1, &nr, &event, &time));
    }
}

static void *until_cancelled(void *kind) {
    for (unsigned round = 0;; round++) {
        is_inside = 1;
        calls((int)(intptr_t)kind, round);
        pthread_testcancel();
    }
    return NULL;
}

static __attribute__((noinline)) void wait_in_vain(void) {
    CUfileIOEvents_t event;
    struct timespec time = {0, 100000000};
    unsigned nr = 1;
    is_inside = 1;
    OK(cuFileBatchIOGetStatus(batch, 1, &nr, &event, &time));
}

static void *once(void *unused) {
    (void)unused;
    wait_in_vain();
    has_returned = 1;
    pthread_testcancel();
    has_returned = 2;
    return NULL;
}

#ifndef __SANITIZE_ADDRESS__
static void *asynchronously(void *unused) {
    (void)unused;
    EQ(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL), 0);
    is_inside = 1;
    for (unsigned round = 0;; round++)
        if (cuFileRead(handle, device, round % 2 ? 4096 : 300000, 0, 0) < 0) _exit(3);
    return NULL;
}
#endif

static void cancelled(void *(*start)(void *), int kind, unsigned after) {
    pthread_t thread;
    void *result = NULL;
    is_inside = 0;
    EQ(pthread_create(&thread, NULL, start, (void *)(intptr_t)kind), 0);
    while (!is_inside) usleep(10);
    usleep(after);
    EQ(pthread_cancel(thread), 0);
    EQ(pthread_join(thread, &result), 0);
    CHECK(result == PTHREAD_CANCELED);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    alarm(120);
    gpu_start();
    OK(cuFileDriverOpen());
    int fd = new_file(argv[1], "data", 7, 18 * MIB, 0);
    handle = register_fd(fd);
    device = gpu_alloc(4 * MIB);
    OK(cuFileBatchIOSetUp(&batch, 4));
    unchanged();
    for (int kind = 0; kind <= 5; kind++)
        for (unsigned round = 0; round < 20; round++) cancelled(until_cancelled, kind, round * 97);
    cancelled(once, 0, 10000);
    EQ(has_returned, 1);
#ifndef __SANITIZE_ADDRESS__ /* which takes the frames that were unwound for live ones */
    for (unsigned round = 0; round < 100; round++) cancelled(asynchronously, 0, round * 17);
#endif
    /* All goes on as before. */
    gpu_zero(device, 4 * MIB);
    for (int kind = 0; kind <= 5; kind++) calls(kind, 0);
    EQ(cuFileRead(handle, device, 1 * MIB, 5, 0), 1 * MIB);
    GPU_SAME(device, 7, 5, 1 * MIB);
    cuFileBatchIODestroy(batch);
    cuFileHandleDeregister(handle);
    OK(cuFileDriverClose());
    return 0;
}
