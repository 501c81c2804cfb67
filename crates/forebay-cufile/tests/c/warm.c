/*
 * A file that is warm and has settled is read again and again, so that its pages may be used in place: what changes in
 * it meanwhile, by this library, by other calls and by truncation, is seen by the next read.
 */
#include "check.h"

#define SIZE (96 * MIB)

static int fd;
static CUfileHandle_t handle;
static char *device;

static void read_all(size_t piece) {
    for (size_t at = 0; at < SIZE; at += piece) {
        size_t len = piece < SIZE - at ? piece : SIZE - at;
        EQ(cuFileRead(handle, device, len, (off_t)at, (off_t)at), len);
    }
}

static void look(uint64_t key, size_t at, size_t len) {
    gpu_zero(device + at, len);
    EQ(cuFileRead(handle, device, len, (off_t)at, (off_t)at), len);
    GPU_SAME(device + at, key, at, len);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    gpu_start();
    fd = new_file(argv[1], "data", 33, SIZE, 0);
    EQ(fsync(fd), 0);
    sleep(1);
    handle = register_fd(fd);
    device = gpu_alloc(SIZE);
    OK(cuFileBufRegister(device, SIZE, 0));
    for (int round = 0; round < 3; round++) read_all(16 * MIB);
    GPU_SAME(device, 33, 0, SIZE);
    gpu_zero(device, SIZE);
    read_all(SIZE);
    GPU_SAME(device, 33, 0, SIZE);
    /* Written by this library. */
    char *other = gpu_alloc(5 * MIB);
    gpu_fill(other, 34, 10 * MIB + 3, 5 * MIB);
    EQ(cuFileWrite(handle, other, 5 * MIB, 10 * MIB + 3, 0), 5 * MIB);
    look(34, 10 * MIB + 3, 5 * MIB);
    look(33, 1 * MIB, 4 * MIB);
    sleep(1);
    read_all(16 * MIB);
    read_all(16 * MIB);
    /* Written by others. */
    unsigned char *bytes = new_bytes(35, 40 * MIB, 1 * MIB);
    EQ(pwrite(fd, bytes, 1 * MIB, 40 * MIB), 1 * MIB);
    look(35, 40 * MIB, 1 * MIB);
    look(33, 41 * MIB, 1 * MIB);
    free(bytes);
    /* Cut and grown again: zeros where it was cut. */
    EQ(ftruncate(fd, 50 * MIB), 0);
    EQ(cuFileRead(handle, device, 4 * MIB, 48 * MIB, 0), 2 * MIB);
    GPU_SAME(device, 33, 48 * MIB, 2 * MIB);
    EQ(cuFileRead(handle, device, 1 * MIB, 60 * MIB, 0), 0);
    EQ(ftruncate(fd, SIZE), 0);
    EQ(cuFileRead(handle, device, 4 * MIB, 60 * MIB, 0), 4 * MIB);
    unsigned char *zeros = malloc(4 * MIB);
    gpu_peek(device, zeros, 4 * MIB, 0);
    for (size_t i = 0; i < 4 * MIB; i++) EQ(zeros[i], 0);
    free(zeros);
    OK(cuFileBufDeregister(device));
    cuFileHandleDeregister(handle);
    OK(cuFileDriverClose());
    /* Nothing keeps the file alive once its descriptor is closed: the space comes back. */
    close(fd);
    return 0;
}
