/* Cancelling a batch drops entries that have not begun and finishes the others: the memory is the program's then. */
#include "check.h"

enum { ENTRIES = 32 };
#define SIZE (4 * MIB)

static uint64_t sum_of(const unsigned char *bytes, size_t len) {
    uint64_t sum = 0;
    for (size_t i = 0; i < len; i++) sum = (sum ^ bytes[i]) * 0x100000001B3u;
    return sum;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    gpu_start();
    int fd = new_file(argv[1], "data", 31, SIZE, 0);
    CUfileHandle_t handle = register_fd(fd);
    char *device = gpu_alloc(ENTRIES * SIZE);
    gpu_zero(device, ENTRIES * SIZE);
    CUfileBatchHandle_t batch;
    OK(cuFileBatchIOSetUp(&batch, ENTRIES));
    CUfileIOParams_t params[ENTRIES];
    memset(params, 0, sizeof params);
    for (int i = 0; i < ENTRIES; i++) {
        params[i].mode = CUFILE_BATCH;
        params[i].fh = handle;
        params[i].opcode = CUFILE_READ;
        params[i].u.batch.devPtr_base = device + i * SIZE;
        params[i].u.batch.size = SIZE;
    }
    /* So slow that the last entry has not begun when the batch is cancelled, on a busy machine too. */
    ((void (*)(uint64_t))gpu_symbol("fake_cuda_set_delay_us"))(250000);
    OK(cuFileBatchIOSubmit(batch, ENTRIES, params, 0));
    OK(cuFileBatchIOCancel(batch));
    unsigned char *bytes = malloc(ENTRIES * SIZE);
    gpu_peek(device, bytes, ENTRIES * SIZE, 0);
    size_t first = (ENTRIES - 1) * SIZE;
    for (size_t i = first; i < ENTRIES * SIZE; i++) EQ(bytes[i], 0); /* the last entry was given up */
    uint64_t sum = sum_of(bytes, ENTRIES * SIZE);
    usleep(300000);
    gpu_peek(device, bytes, ENTRIES * SIZE, 0);
    CHECK(sum_of(bytes, ENTRIES * SIZE) == sum); /* nothing landed later */
    free(bytes);
    CUfileIOEvents_t events[ENTRIES];
    unsigned nr = ENTRIES;
    OK(cuFileBatchIOGetStatus(batch, 0, &nr, events, NULL));
    EQ(nr, 0);
    gpu_heals();
    OK(cuFileBatchIOSubmit(batch, 1, &params[ENTRIES - 1], 0));
    nr = 1;
    OK(cuFileBatchIOGetStatus(batch, 1, &nr, events, NULL));
    EQ(nr, 1);
    EQ(events[0].status, CUFILE_COMPLETE);
    GPU_SAME(device + first, 31, 0, SIZE);
    cuFileBatchIODestroy(batch);
    cuFileHandleDeregister(handle);
    return 0;
}
