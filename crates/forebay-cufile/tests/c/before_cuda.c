/* The library is used before the program's first CUDA call, and the thread's context is left as it was. */
#include "check.h"

static uint64_t current(void) {
    uint64_t context = 99;
    CU_OK(cuCtxGetCurrent, (uint64_t *), &context);
    return context;
}

static void *without_context(void *arguments) {
    void **both = arguments;
    EQ(current(), 0);
    EQ(cuFileRead(both[0], both[1], 5000, 7, 0), 5000);
    GPU_SAME(both[1], 23, 7, 5000);
    EQ(current(), 0);
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    OK(cuFileDriverOpen());
    int fd = new_file(argv[1], "data", 23, 1 * MIB, 0);
    CUfileHandle_t handle = register_fd(fd);
    unsigned char bytes[1000];
    EQ(cuFileRead(handle, bytes, sizeof bytes, 1, 0), sizeof bytes);
    SAME(bytes, 23, 1, sizeof bytes);
    CUfileBatchHandle_t batch;
    OK(cuFileBatchIOSetUp(&batch, 1));
    cuFileBatchIODestroy(batch);
    gpu_start();
    uint64_t mine = current();
    char *device = gpu_alloc(1 * MIB);
    EQ(cuFileRead(handle, device, 1 * MIB, 0, 0), 1 * MIB);
    GPU_SAME(device, 23, 0, 1 * MIB);
    EQ(current(), mine);
    /* A thread that has no context at all may read into device memory. */
    pthread_t thread;
    void *both[2] = {handle, device};
    EQ(pthread_create(&thread, NULL, without_context, both), 0);
    EQ(pthread_join(thread, NULL), 0);
    return 0;
}
