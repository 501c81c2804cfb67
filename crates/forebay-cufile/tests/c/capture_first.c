/* A capture is on before the library is used for the first time in the process: everything still works. */
#include "check.h"

int main(int argc, char **argv) {
    CHECK(argc == 2);
    gpu_start();
    char *device = gpu_alloc(1 * MIB);
    CUstream stream = gpu_stream(1);
    int fd = new_file(argv[1], "data", 21, 1 * MIB, 0);
    CU_OK(cuStreamBeginCapture_v2, (uint64_t, int), (uint64_t)stream, 0);
    CUfileHandle_t handle = register_fd(fd);
    OK(cuFileBufRegister(device, 1 * MIB, 0));
    EQ(cuFileRead(handle, device, 700000, 3, 0), 700000);
    EQ(cuFileRead(handle, device, 100, 5, 800000), 100);
    uint64_t graph = 99;
    CU_OK(cuStreamEndCapture, (uint64_t, uint64_t *), (uint64_t)stream, &graph);
    EQ(graph, 0);
    GPU_SAME(device, 21, 3, 700000);
    GPU_SAME(device + 800000, 21, 5, 100);
    return 0;
}
