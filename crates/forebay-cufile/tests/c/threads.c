/* Many threads share one handle: reads, writes to parts of their own, batches, streams, registrations. */
#include "check.h"

enum { THREADS = 16, ROUNDS = 40 };
#define PART (256 * KIB)

static CUfileHandle_t handle;
static int fd;

static void *work(void *argument) {
    int me = (int)(intptr_t)argument;
    gpu_start();
    unsigned random = 1234567u + (unsigned)me;
    char *device = gpu_alloc(PART);
    off_t start = (off_t)me * PART;
    CUstream stream = gpu_stream(1);
    for (int round = 0; round < ROUNDS; round++) {
        random = random * 1103515245u + 12345u;
        size_t at = (random >> 8) % (PART - 1), len = 1 + (random >> 4) % (PART - at);
        EQ(cuFileRead(handle, device, len, start + (off_t)at, (off_t)at), len);
        GPU_SAME(device + at, 26, start + at, len);
        if (round % 4 == 1) {
            OK(cuFileBufRegister(device, PART, 0));
            gpu_fill(device + at, 26, start + at, len);
            EQ(cuFileWrite(handle, device, len, start + (off_t)at, (off_t)at), len);
            OK(cuFileBufDeregister(device));
        }
        if (round % 4 == 2) {
            CUfileIOEvents_t event = batch_of_one(handle, CUFILE_READ, device, len, start);
            EQ(event.status, CUFILE_COMPLETE);
            EQ(event.ret, len);
            GPU_SAME(device, 26, start, len);
        }
        if (round % 4 == 3) {
            ssize_t done = -9;
            off_t memory = 0, offset = start + (off_t)at;
            OK(cuFileReadAsync(handle, device, &len, &offset, &memory, &done, stream));
            gpu_wait(stream);
            EQ(done, len);
            GPU_SAME(device, 26, offset, len);
        }
    }
    gpu_free(device);
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    gpu_start();
    fd = new_file(argv[1], "data", 26, THREADS * PART, 0);
    handle = register_fd(fd);
    pthread_t threads[THREADS];
    for (intptr_t i = 0; i < THREADS; i++) EQ(pthread_create(&threads[i], NULL, work, (void *)i), 0);
    for (int i = 0; i < THREADS; i++) EQ(pthread_join(threads[i], NULL), 0);
    file_has(fd, 26, 0, 0, THREADS * PART);
    cuFileHandleDeregister(handle);
    OK(cuFileDriverClose());
    return 0;
}
