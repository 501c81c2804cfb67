/* The device fails: transfers say so, nothing hangs, and what does not need the device goes on. */
#include "check.h"

static CUfileHandle_t handle;

static void fails(ssize_t answer) {
    int code = errno;
    EQ(answer, -1);
    CHECK(code != 0 && code != EEXIST);
}

static void sync_faults(char *device) {
    const char *works[] = {"async:copy", "async:kernel", "cuMemcpyHtoDAsync_v2", "cuStreamCreate"};
    for (int i = 0; i < 4; i++) {
        for (size_t size = 5000; size <= 2 * MIB; size *= 20) {
            gpu_fails(works[i], 700, 0, 0);
            errno = EEXIST;
            ssize_t answer = cuFileRead(handle, device, size, 0, 0);
            int code = errno;
            gpu_heals();
            if (answer != (ssize_t)size) { /* not every way uses every call */
                errno = code;
                fails(answer);
            } else {
                GPU_SAME(device, 28, 0, size);
            }
        }
    }
    EQ(cuFileRead(handle, device, 1 * MIB, 3, 0), 1 * MIB);
    GPU_SAME(device, 28, 3, 1 * MIB);
}

/* A sticky fault: the GPU is lost for device memory; host memory is served. */
static void lost(char *device) {
    gpu_fails("async:copy", 719, 0, 0);
    gpu_fails("async:kernel", 719, 0, 0);
    errno = EEXIST;
    fails(cuFileRead(handle, device, 1 * MIB, 0, 0));
    errno = EEXIST;
    fails(cuFileRead(handle, device, 4096, 0, 0));
    unsigned char *host = malloc(1 * MIB);
    EQ(cuFileRead(handle, host, 1 * MIB, 5, 0), 1 * MIB);
    SAME(host, 28, 5, 1 * MIB);
    free(host);
    gpu_heals();
    EQ(cuFileRead(handle, device, 1 * MIB, 7, 0), 1 * MIB);
    GPU_SAME(device, 28, 7, 1 * MIB);
}

static void batch_faults(char *device) {
    CUfileBatchHandle_t batch;
    OK(cuFileBatchIOSetUp(&batch, 8));
    CUfileIOParams_t params[8];
    memset(params, 0, sizeof params);
    for (int i = 0; i < 8; i++) {
        params[i].mode = CUFILE_BATCH;
        params[i].fh = handle;
        params[i].u.batch.devPtr_base = device;
        params[i].u.batch.devPtr_offset = i * 100000;
        params[i].u.batch.size = 100000;
    }
    gpu_fails("async:copy", 700, 0, 0);
    gpu_fails("async:kernel", 700, 0, 0);
    OK(cuFileBatchIOSubmit(batch, 8, params, 0));
    CUfileIOEvents_t events[8];
    unsigned came = 0;
    while (came < 8) {
        unsigned nr = 8;
        OK(cuFileBatchIOGetStatus(batch, 1, &nr, events, NULL));
        for (unsigned i = 0; i < nr; i++) {
            EQ(events[i].status, CUFILE_FAILED);
            CHECK((ssize_t)events[i].ret < 0);
        }
        came += nr;
    }
    gpu_heals();
    OK(cuFileBatchIOSubmit(batch, 8, params, 0));
    for (came = 0; came < 8;) {
        unsigned nr = 8;
        OK(cuFileBatchIOGetStatus(batch, 1, &nr, events, NULL));
        for (unsigned i = 0; i < nr; i++) EQ(events[i].status, CUFILE_COMPLETE);
        came += nr;
    }
    cuFileBatchIODestroy(batch);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    gpu_start();
    int fd = new_file(argv[1], "data", 28, 3 * MIB, 0);
    handle = register_fd(fd);
    char *device = gpu_alloc(3 * MIB);
    sync_faults(device);
    lost(device);
    batch_faults(device);
    return 0;
}
