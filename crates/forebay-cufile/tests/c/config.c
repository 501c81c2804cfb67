/* What cufile.json says holds. The driver of the tests writes the file; `CASE` names what it says. */
#include "check.h"

static void values(void) {
    EQ(size_of(CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB), 2048);
    EQ(size_of(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE), 77);
    EQ(size_of(CUFILE_PARAM_EXECUTION_MAX_IO_THREADS), 3);
    EQ(size_of(CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS), 9);
    EQ(size_of(CUFILE_PARAM_PROFILE_STATS), 2);
    EQ(bool_of(CUFILE_PARAM_PROPERTIES_USE_POLL_MODE), true);
    EQ(bool_of(CUFILE_PARAM_FORCE_ODIRECT_MODE), false);
}

static void works(const char *folder) {
    int fd = new_file(folder, "data", 24, 10000, 0);
    CUfileHandle_t handle = register_fd(fd);
    unsigned char bytes[1000];
    EQ(cuFileRead(handle, bytes, sizeof bytes, 1, 0), sizeof bytes);
    SAME(bytes, 24, 1, sizeof bytes);
    cuFileHandleDeregister(handle);
    close(fd);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    const char *which = getenv("CASE");
    CHECK(which);
    if (strcmp(which, "values") == 0) {
        values();
        OK(cuFileDriverOpen());
        values();
        CUfileBatchHandle_t batch;
        CODE(cuFileBatchIOSetUp(&batch, 78), CU_FILE_INVALID_VALUE);
        OK(cuFileBatchIOSetUp(&batch, 77));
        cuFileBatchIODestroy(batch);
        int level = 0;
        OK(cuFileGetStatsLevel(&level));
        EQ(level, 2);
        works(argv[1]);
    } else if (strcmp(which, "works") == 0) {
        works(argv[1]);
    } else if (strcmp(which, "forced by environment") == 0) {
        EQ(bool_of(CUFILE_PARAM_FORCE_COMPAT_MODE), true); /* the environment's, against the file's */
        OK(cuFileSetParameterBool(CUFILE_PARAM_FORCE_COMPAT_MODE, false));
        EQ(bool_of(CUFILE_PARAM_FORCE_COMPAT_MODE), false); /* the program's, against both */
        works(argv[1]);
    } else if (strcmp(which, "strict") == 0) {
        CODE(cuFileDriverOpen(), CU_FILE_DRIVER_NOT_INITIALIZED);
        EQ(cuFileUseCount(), 0);
        int fd = new_file(argv[1], "data", 24, 10000, 0);
        CUfileHandle_t handle;
        CODE(try_register(&handle, fd), CU_FILE_DRIVER_NOT_INITIALIZED);
        static char bytes[100];
        CODE(cuFileBufRegister(bytes, sizeof bytes, 0), CU_FILE_DRIVER_NOT_INITIALIZED);
    } else if (strcmp(which, "denied") == 0) {
        /* The lists say where NVIDIA's direct path is not to be used: nothing here is. */
        works(argv[1]);
    } else {
        FAIL("no such case: %s", which);
    }
    return 0;
}
