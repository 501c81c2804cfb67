/* A child forked before the first use works; one forked afterwards gets clear errors, and the parent goes on. */
#include "check.h"

static int child_before(const char *folder) {
    int fd = new_file(folder, "child", 25, 4096, 0);
    CUfileHandle_t handle = register_fd(fd);
    gpu_start();
    char *device = gpu_alloc(4096);
    EQ(cuFileRead(handle, device, 4096, 0, 0), 4096);
    GPU_SAME(device, 25, 0, 4096);
    return 0;
}

/* Every call must return, and none may succeed. */
static int child_after(CUfileHandle_t handle, CUfileBatchHandle_t batch, const char *folder) {
    unsigned char bytes[100];
    errno = EEXIST;
    CHECK(cuFileRead(handle, bytes, sizeof bytes, 0, 0) < 0 && errno != EEXIST && errno != 0);
    errno = EEXIST;
    CHECK(cuFileWrite(handle, bytes, sizeof bytes, 0, 0) < 0 && errno != EEXIST && errno != 0);
    int fd = open(path_in(folder, "data"), O_RDONLY);
    CUfileHandle_t other;
    CHECK(try_register(&other, fd).err != CU_FILE_SUCCESS);
    CHECK(cuFileDriverOpen().err != CU_FILE_SUCCESS);
    CHECK(cuFileBufRegister(bytes, sizeof bytes, 0).err != CU_FILE_SUCCESS);
    CUfileIOParams_t params;
    memset(&params, 0, sizeof params);
    params.mode = CUFILE_BATCH;
    params.fh = handle;
    params.u.batch.devPtr_base = bytes;
    params.u.batch.size = sizeof bytes;
    CHECK(cuFileBatchIOSubmit(batch, 1, &params, 0).err != CU_FILE_SUCCESS);
    cuFileBatchIODestroy(batch);
    cuFileHandleDeregister(handle);
    return 0;
}

static void ends_well(pid_t child) {
    int status;
    for (int i = 0; i < 300; i++) {
        if (waitpid(child, &status, WNOHANG) == child) {
            if (WIFSIGNALED(status)) FAIL("the child died of signal %d", WTERMSIG(status));
            EQ(WEXITSTATUS(status), 0);
            return;
        }
        usleep(100000);
    }
    kill(child, 9);
    FAIL("the child hangs");
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    pid_t child = fork();
    if (child == 0) exit(child_before(argv[1]));
    ends_well(child);
    int fd = new_file(argv[1], "data", 25, 1 * MIB, 0);
    CUfileHandle_t handle = register_fd(fd);
    gpu_start();
    char *device = gpu_alloc(1 * MIB);
    EQ(cuFileRead(handle, device, 1 * MIB, 0, 0), 1 * MIB);
    CUfileBatchHandle_t batch;
    OK(cuFileBatchIOSetUp(&batch, 4));
    child = fork();
    if (child == 0) exit(child_after(handle, batch, argv[1])); /* exit: its handlers must end too */
    ends_well(child);
    child = fork();
    if (child == 0) _exit(0);
    ends_well(child);
    EQ(cuFileRead(handle, device, 1 * MIB, 0, 0), 1 * MIB);
    GPU_SAME(device, 25, 0, 1 * MIB);
    OK(cuFileDriverClose());
    return 0;
}
