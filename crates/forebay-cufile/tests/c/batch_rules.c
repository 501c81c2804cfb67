/* What batches refuse, how waiting ends, cancelling, and destroying twice. */
#include "check.h"

static CUfileHandle_t handle;
static char *device;

static CUfileIOParams_t entry(int i) {
    CUfileIOParams_t params = batch_entry(handle, CUFILE_READ, device, 4096, i * 4096);
    params.u.batch.devPtr_offset = i * 4096;
    params.cookie = (void *)(intptr_t)(i + 1);
    return params;
}

static void set_up(void) {
    CUfileBatchHandle_t batch;
    CODE(cuFileBatchIOSetUp(&batch, 0), CU_FILE_INVALID_VALUE);
    CODE(cuFileBatchIOSetUp(&batch, 129), CU_FILE_INVALID_VALUE);
    CODE(cuFileBatchIOSetUp(NULL, 1), CU_FILE_INVALID_VALUE);
    OK(cuFileBatchIOSetUp(&batch, 128));
    cuFileBatchIODestroy(batch);
}

static void submit(void) {
    CUfileBatchHandle_t batch;
    OK(cuFileBatchIOSetUp(&batch, 4));
    CUfileIOParams_t params[5];
    for (int i = 0; i < 5; i++) params[i] = entry(i);
    CODE(cuFileBatchIOSubmit(batch, 5, params, 0), CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR);
    CODE(cuFileBatchIOSubmit(batch, 0, params, 0), CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR);
    CODE(cuFileBatchIOSubmit(batch, 2, NULL, 0), CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR);
    CODE(cuFileBatchIOSubmit(NULL, 2, params, 0), CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR);
    CODE(cuFileBatchIOSubmit((CUfileBatchHandle_t)0x42, 2, params, 0), CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR);
    /* One bad entry refuses them all. */
    params[1].fh = NULL;
    CODE(cuFileBatchIOSubmit(batch, 3, params, 0), CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR);
    params[1] = entry(1);
    params[2].u.batch.file_offset = -1;
    CODE(cuFileBatchIOSubmit(batch, 3, params, 0), CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR);
    params[2] = entry(2);
    CUfileIOEvents_t events[4];
    unsigned nr = 4;
    OK(cuFileBatchIOGetStatus(batch, 0, &nr, events, NULL));
    EQ(nr, 0);
    /* After refusals it works as before. */
    OK(cuFileBatchIOSubmit(batch, 3, params, 0));
    nr = 4;
    OK(cuFileBatchIOGetStatus(batch, 3, &nr, events, NULL));
    EQ(nr, 3);
    cuFileBatchIODestroy(batch);
}

/* What is in flight, or was and has not been taken, counts: there is no room for more. */
static void full(void) {
    CUfileBatchHandle_t batch;
    OK(cuFileBatchIOSetUp(&batch, 2));
    CUfileIOParams_t params[2] = {entry(0), entry(1)};
    OK(cuFileBatchIOSubmit(batch, 2, params, 0));
    CUfileError_t answer = cuFileBatchIOSubmit(batch, 2, params, 0);
    CHECK(answer.err == CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR || answer.err == CU_FILE_BATCH_FULL ||
          answer.err == CU_FILE_SUCCESS);
    unsigned wanted = answer.err == CU_FILE_SUCCESS ? 4 : 2, came = 0;
    while (came < wanted) {
        CUfileIOEvents_t events[4];
        unsigned nr = 4;
        OK(cuFileBatchIOGetStatus(batch, 1, &nr, events, NULL));
        came += nr;
    }
    EQ(came, wanted);
    OK(cuFileBatchIOSubmit(batch, 2, params, 0));
    cuFileBatchIODestroy(batch); /* with entries in flight */
}

static void waiting(void) {
    CUfileBatchHandle_t batch;
    OK(cuFileBatchIOSetUp(&batch, 4));
    CUfileIOEvents_t events[4];
    unsigned nr = 2;
    CODE(cuFileBatchIOGetStatus(batch, 3, &nr, events, NULL), CU_FILE_INVALID_VALUE);
    CODE(cuFileBatchIOGetStatus(batch, 0, NULL, events, NULL), CU_FILE_INVALID_VALUE);
    CODE(cuFileBatchIOGetStatus(batch, 0, &nr, NULL, NULL), CU_FILE_INVALID_VALUE);
    nr = 2;
    CODE(cuFileBatchIOGetStatus(NULL, 0, &nr, events, NULL), CU_FILE_INTERNAL_BATCH_GETSTATUS_ERROR);
    CODE(cuFileBatchIOGetStatus((CUfileBatchHandle_t)0x42, 0, &nr, events, NULL),
         CU_FILE_INTERNAL_BATCH_GETSTATUS_ERROR);
    /* Nothing in flight: a timeout is a success with no events, whatever the timespec holds. */
    struct timespec times[] = {{0, 0}, {0, 20000000}, {0, 5000000000}, {-1, 0}, {0, -5}, {-77, 2000000000}};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        if (i == 2) continue; /* five seconds: clamped or waited for, but too long here */
        nr = 1;
        OK(cuFileBatchIOGetStatus(batch, 1, &nr, events, &times[i]));
        EQ(nr, 0);
    }
    CUfileIOParams_t params[2] = {entry(0), entry(1)};
    OK(cuFileBatchIOSubmit(batch, 2, params, 0));
    /* An odd timespec with work in flight: no error; the events come sooner or later. */
    struct timespec odd = {1000000000000LL, 123456789012LL};
    nr = 2;
    OK(cuFileBatchIOGetStatus(batch, 2, &nr, events, &odd));
    EQ(nr, 2);
    /* More is asked for than is in flight: it ends with the timeout. */
    OK(cuFileBatchIOSubmit(batch, 1, params, 0));
    struct timespec shortly = {0, 200000000};
    nr = 4;
    OK(cuFileBatchIOGetStatus(batch, 3, &nr, events, &shortly));
    EQ(nr, 1);
    cuFileBatchIODestroy(batch);
}

static void *wait_for_event(void *batch) {
    CUfileIOEvents_t event;
    unsigned nr = 1;
    struct timespec time = {10, 0};
    OK(cuFileBatchIOGetStatus(batch, 1, &nr, &event, &time));
    EQ(nr, 1);
    return NULL;
}

/* One thread waits before another submits. */
static void waits_for_a_submission(void) {
    CUfileBatchHandle_t batch;
    OK(cuFileBatchIOSetUp(&batch, 4));
    pthread_t thread;
    EQ(pthread_create(&thread, NULL, wait_for_event, batch), 0);
    usleep(50000);
    CUfileIOParams_t params = entry(3);
    OK(cuFileBatchIOSubmit(batch, 1, &params, 0));
    EQ(pthread_join(thread, NULL), 0);
    cuFileBatchIODestroy(batch);
}

static void no_events(CUfileBatchHandle_t batch) {
    CUfileIOEvents_t events[64];
    struct timespec time = {0, 50000000};
    unsigned nr = 64;
    OK(cuFileBatchIOGetStatus(batch, 1, &nr, events, &time));
    EQ(nr, 0);
    nr = 64;
    OK(cuFileBatchIOGetStatus(batch, 1, &nr, events, NULL)); /* nothing is in flight: no reason to wait */
    EQ(nr, 0);
}

static void cancel(void) {
    CUfileBatchHandle_t batch;
    OK(cuFileBatchIOSetUp(&batch, 64));
    OK(cuFileBatchIOCancel(NULL));
    CODE(cuFileBatchIOCancel((CUfileBatchHandle_t)0x42), CU_FILE_INTERNAL_BATCH_CANCEL_ERROR);
    OK(cuFileBatchIOCancel(batch));
    no_events(batch);
    CUfileIOParams_t params[64];
    for (int i = 0; i < 64; i++) params[i] = entry(i);
    for (int wait = 0; wait < 2; wait++) {
        OK(cuFileBatchIOSubmit(batch, 64, params, 0));
        CUfileIOEvents_t events[64];
        unsigned nr = 1;
        if (wait) OK(cuFileBatchIOGetStatus(batch, 1, &nr, events, NULL)); /* the others are complete as well, or soon */
        OK(cuFileBatchIOCancel(batch));
        no_events(batch);
        OK(cuFileBatchIOCancel(batch));
    }
    /* There is room for all again. */
    OK(cuFileBatchIOSubmit(batch, 64, params, 0));
    for (unsigned came = 0; came < 64;) {
        CUfileIOEvents_t events[64];
        unsigned nr = 64;
        OK(cuFileBatchIOGetStatus(batch, 1, &nr, events, NULL));
        CHECK(nr > 0);
        for (unsigned i = 0; i < nr; i++) EQ(events[i].status, CUFILE_COMPLETE);
        came += nr;
    }
    OK(cuFileBatchIOSubmit(batch, 64, params, 0));
    OK(cuFileBatchIOCancel(batch));
    cuFileBatchIODestroy(batch);
}

static void destroyed(void) {
    CUfileBatchHandle_t batch;
    OK(cuFileBatchIOSetUp(&batch, 4));
    cuFileBatchIODestroy(batch);
    cuFileBatchIODestroy(batch);
    cuFileBatchIODestroy(NULL);
    cuFileBatchIODestroy((CUfileBatchHandle_t)0x4242);
    CUfileIOParams_t params = entry(0);
    CODE(cuFileBatchIOSubmit(batch, 1, &params, 0), CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR);
    CUfileIOEvents_t event;
    unsigned nr = 1;
    CODE(cuFileBatchIOGetStatus(batch, 0, &nr, &event, NULL), CU_FILE_INTERNAL_BATCH_GETSTATUS_ERROR);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    gpu_start();
    int fd = new_file(argv[1], "data", 15, 1 * MIB, 0);
    handle = register_fd(fd);
    device = gpu_alloc(1 * MIB);
    set_up();
    submit();
    full();
    waiting();
    waits_for_a_submission();
    cancel();
    destroyed();
    EQ(cuFileRead(handle, device, 4096, 5, 0), 4096);
    GPU_SAME(device, 15, 5, 4096);
    return 0;
}
