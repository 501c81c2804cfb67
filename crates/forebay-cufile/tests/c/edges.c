/* The end of the file, nothing to do, growing files, and what each mistake answers. */
#include "check.h"

static void the_end(CUfileHandle_t handle, void *memory) {
    EQ(cuFileRead(handle, memory, 4096, 10000, 0), 0);
    EQ(cuFileRead(handle, memory, 4096, 1 << 30, 0), 0);
    EQ(cuFileRead(handle, memory, 4096, 9990, 0), 10);
    EQ(cuFileRead(handle, memory, 1 * MIB, 0, 0), 10000);
    EQ(cuFileRead(handle, memory, 4096, 8192, 0), 10000 - 8192);
    EQ(cuFileRead(handle, memory, 0, 0, 0), 0);
    EQ(cuFileRead(handle, memory, 0, 20000, 0), 0);
    EQ(cuFileWrite(handle, memory, 0, 0, 0), 0);
}

static void grows(const char *folder, void *memory) {
    int fd = new_file(folder, "grows", 9, 100, 0);
    CUfileHandle_t handle = register_fd(fd);
    gpu_fill(memory, 10, 0, 5000);
    EQ(cuFileWrite(handle, memory, 5000, 100000, 0), 5000);
    struct stat status;
    EQ(fstat(fd, &status), 0);
    EQ(status.st_size, 105000);
    file_has(fd, 10, 0, 100000, 5000);
    unsigned char hole[1000];
    memset(hole, 1, sizeof hole);
    EQ(cuFileRead(handle, hole, sizeof hole, 50000, 0), sizeof hole);
    for (size_t i = 0; i < sizeof hole; i++) EQ(hole[i], 0);
    EQ(ftruncate(fd, 1000), 0);
    EQ(cuFileRead(handle, memory, 4096, 500, 0), 500);
    cuFileHandleDeregister(handle);
    close(fd);
}

/* Past what 32 bits can tell. */
static void far_away(const char *folder, void *memory) {
    int fd = new_file(folder, "far", 9, 100, 0);
    CUfileHandle_t handle = register_fd(fd);
    off_t far = ((off_t)5 << 30) + 12345;
    gpu_fill(memory, 36, 0, 300000);
    EQ(cuFileWrite(handle, memory, 300000, far, 0), 300000);
    gpu_zero(memory, 300000);
    EQ(cuFileRead(handle, memory, 300000, far, 0), 300000);
    GPU_SAME(memory, 36, 0, 300000);
    EQ(cuFileRead(handle, memory, 300000, far + 299999, 0), 1);
    EQ(cuFileRead(handle, memory, 4096, INT64_MAX - 4096, 0), 0);
    errno = EEXIST;
    CHECK(cuFileWrite(handle, memory, 4096, INT64_MAX - 100, 0) == -1 && errno != EEXIST && errno != 0);
    cuFileHandleDeregister(handle);
    close(fd);
}

static void mistakes(const char *folder, CUfileHandle_t handle, char *memory) {
    MINUS_ONE(cuFileRead(NULL, memory, 100, 0, 0), EINVAL);
    MINUS_ONE(cuFileWrite(NULL, memory, 100, 0, 0), EINVAL);
    MINUS_ONE(cuFileRead((CUfileHandle_t)0x5678, memory, 100, 0, 0), EINVAL);
    MINUS_ONE(cuFileRead(handle, memory, 100, -1, 0), CU_FILE_INVALID_VALUE);
    MINUS_ONE(cuFileWrite(handle, memory, 100, -4096, 0), CU_FILE_INVALID_VALUE);
    MINUS_ONE(cuFileRead(handle, memory, 100, 0, -1), CU_FILE_INTERNAL_ERROR);
    MINUS_ONE(cuFileWrite(handle, memory, 100, 0, -1), CU_FILE_INTERNAL_ERROR);
    /* Out of the allocation: 1 MiB. */
    MINUS_ONE(cuFileRead(handle, memory, 4096, 0, 1 * MIB - 100), EIO);
    MINUS_ONE(cuFileWrite(handle, memory, 2 * MIB, 0, 0), EIO);
    int fd = open(path_in(folder, "data"), O_WRONLY);
    CUfileHandle_t only = register_fd(fd);
    MINUS_ONE(cuFileRead(only, memory, 100, 0, 0), CU_FILE_INVALID_FILE_OPEN_FLAG);
    EQ(cuFileRead(handle, memory, 100, 0, 0), 100);
    EQ(cuFileWrite(only, memory, 100, 0, 0), 100);
    cuFileHandleDeregister(only);
    close(fd);
    fd = open(path_in(folder, "data"), O_RDONLY);
    only = register_fd(fd);
    MINUS_ONE(cuFileWrite(only, memory, 100, 0, 0), EIO);
    EQ(cuFileRead(only, memory, 100, 0, 0), 100);
    cuFileHandleDeregister(only);
    close(fd);
}

/* Memory that is not there must not kill the process. */
static void wild_memory(CUfileHandle_t handle) {
    errno = EEXIST;
    EQ(cuFileRead(handle, NULL, 100, 0, 0), -1);
    CHECK(errno != EEXIST && errno != 0);
    void *hole = (void *)0x1000;
    errno = EEXIST;
    EQ(cuFileRead(handle, hole, 100, 0, 0), -1);
    CHECK(errno != EEXIST && errno != 0);
    errno = EEXIST;
    EQ(cuFileWrite(handle, hole, 100, 0, 0), -1);
    CHECK(errno != EEXIST && errno != 0);
    char *freed = gpu_alloc(64 * KIB);
    gpu_free(freed);
    errno = EEXIST;
    EQ(cuFileRead(handle, freed, 100, 0, 0), -1);
    CHECK(errno != EEXIST && errno != 0);
}

/* Terabytes of a file of megabytes: what there is, at once. */
static void far_too_much(const char *folder) {
    size_t len = 32 * MIB;
    int fd = new_file(folder, "much", 37, len, 0);
    CUfileHandle_t handle = register_fd(fd);
    unsigned char *bytes = malloc(len);
    EQ(cuFileRead(handle, bytes, (size_t)1 << 46, 0, 0), len);
    SAME(bytes, 37, 0, len);
    EQ(cuFileRead(handle, bytes, (size_t)1 << 46, 5, 0), len - 5);
    SAME(bytes, 37, 5, len - 5);
    EQ(cuFileRead(handle, bytes, (size_t)1 << 46, (off_t)1 << 40, 0), 0);
    CUfileIOVec_t parts[2] = {{bytes, len - 100}, {bytes + len - 100, (size_t)1 << 46}};
    memset(bytes, 0, len);
    EQ(cuFileReadv(handle, parts, 2, 0, 0), len);
    SAME(bytes, 37, 0, len);
    CUfileIOEvents_t event = batch_of_one(handle, CUFILE_READ, bytes, (size_t)1 << 46, 0);
    EQ(event.status, CUFILE_COMPLETE);
    EQ(event.ret, len);
    size_t size = (size_t)1 << 40;
    off_t offset = 7, at = 0;
    ssize_t done = 0;
    OK(cuFileReadAsync(handle, bytes, &size, &offset, &at, &done, NULL));
    gpu_wait(NULL);
    EQ(done, len - 7);
    SAME(bytes, 37, 7, len - 7);
    cuFileHandleDeregister(handle);
    free(bytes);
    close(fd);
}

/* A caller that looks at errno only after -1 still wants its own errno left alone. */
static void errno_is_kept(CUfileHandle_t handle, void *memory) {
    errno = EDOM;
    EQ(cuFileRead(handle, memory, 100, 0, 0), 100);
    CHECK(errno == EDOM);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    gpu_start();
    int fd = new_file(argv[1], "data", 9, 10000, 0);
    CUfileHandle_t handle = register_fd(fd);
    char *device = gpu_alloc(1 * MIB);
    the_end(handle, device);
    GPU_SAME(device, 9, 8192, 10000 - 8192);
    the_end(handle, malloc(1 * MIB));
    grows(argv[1], device);
    far_away(argv[1], device);
    mistakes(argv[1], handle, device);
    wild_memory(handle);
    far_too_much(argv[1]);
    errno_is_kept(handle, device);
    EQ(cuFileRead(handle, device, 1000, 123, 0), 1000);
    GPU_SAME(device, 9, 123, 1000);
    return 0;
}
