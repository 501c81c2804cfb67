/* cuFileReadv and cuFileWritev: one range of the file, several pieces of memory. */
#include "check.h"

int main(int argc, char **argv) {
    CHECK(argc == 2);
    gpu_start();
    int fd = new_file(argv[1], "data", 11, 100000, 0);
    CUfileHandle_t handle = register_fd(fd);
    char *device = gpu_alloc(1 * MIB);
    unsigned char *host = malloc(1 * MIB);
    CUfileIOVec_t pieces[] = {{device, 5000}, {host, 1}, {device + 8192, 0}, {device + 10000, 30000}, {host + 100, 4096}};
    EQ(cuFileReadv(handle, pieces, 5, 77, 0), 39097);
    GPU_SAME(device, 11, 77, 5000);
    SAME(host, 11, 5077, 1);
    GPU_SAME(device + 10000, 11, 5078, 30000);
    SAME(host + 100, 11, 35078, 4096);
    /* The end of the file is inside the second piece. */
    EQ(cuFileReadv(handle, pieces, 1, 99000, 0), 1000);
    CUfileIOVec_t late[] = {{host, 500}, {device, 50000}, {host + 1000, 500}};
    EQ(cuFileReadv(handle, late, 3, 99000, 0), 1000);
    EQ(cuFileReadv(handle, pieces, 0, 0, 0), 0);
    EQ(cuFileReadv(handle, late, 3, 100000, 0), 0);
    gpu_fill(device, 12, 0, 5000);
    fill(host, 12, 5000, 3000);
    CUfileIOVec_t out[] = {{device, 5000}, {host, 3000}};
    EQ(cuFileWritev(handle, out, 2, 10001, 0), 8000);
    file_has(fd, 12, 0, 10001, 8000);
    file_has(fd, 11, 18001, 18001, 1000);
    MINUS_ONE(cuFileReadv(NULL, pieces, 5, 0, 0), EINVAL);
    MINUS_ONE(cuFileReadv(handle, NULL, 5, 0, 0), EINVAL);
    MINUS_ONE(cuFileReadv(handle, pieces, 5, -1, 0), CU_FILE_INVALID_VALUE);
    cuFileHandleDeregister(handle);
    MINUS_ONE(cuFileWritev(handle, out, 2, 0, 0), CU_FILE_HANDLE_NOT_REGISTERED);
    return 0;
}
