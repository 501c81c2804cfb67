/* 2048 transfers in flight over a few streams behind a closed gate: submitting does not block, and all are right. */
#include "check.h"

enum { MANY = 2048, STREAMS = 8, PIECE = 2000 };

static size_t sizes[MANY];
static off_t files[MANY], memories[MANY];
static ssize_t done[MANY];

static void hold(void *gate) {
    while (!__atomic_load_n((int *)gate, __ATOMIC_ACQUIRE)) usleep(100);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    gpu_start();
    int fd = new_file(argv[1], "data", 18, 1 * MIB, 0);
    CUfileHandle_t handle = register_fd(fd);
    char *device = gpu_alloc((size_t)MANY * PIECE);
    CUstream streams[STREAMS];
    int gate = 0;
    for (int s = 0; s < STREAMS; s++) {
        streams[s] = gpu_stream(1);
        if (s % 2) OK(cuFileStreamRegister(streams[s], 7));
        gpu_host_function(streams[s], hold, &gate);
    }
    for (int i = 0; i < MANY; i++) {
        sizes[i] = PIECE - i % 100;
        files[i] = (off_t)i * 500;
        memories[i] = (off_t)i * PIECE;
        done[i] = -777;
        OK(cuFileReadAsync(handle, device, &sizes[i], &files[i], &memories[i], &done[i], streams[i % STREAMS]));
    }
    for (int i = 0; i < MANY; i++) EQ(done[i], -777);
    __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
    for (int s = 0; s < STREAMS; s++) gpu_wait(streams[s]);
    for (int i = 0; i < MANY; i++) {
        size_t left = 1 * MIB - (size_t)files[i], wanted = sizes[i] < left ? sizes[i] : left;
        EQ(done[i], wanted);
        GPU_SAME(device + memories[i], 18, (uint64_t)files[i], wanted);
    }
    /* The streams end with the driver. */
    OK(cuFileDriverClose());
    return 0;
}
