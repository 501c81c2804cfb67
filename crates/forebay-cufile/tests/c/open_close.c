/* Opening is optional and counted; the last close ends everything; nothing needs a CUDA call before. */
#include "check.h"

static void counted(void) {
    EQ(cuFileUseCount(), 0);
    CODE(cuFileDriverClose(), CU_FILE_DRIVER_NOT_INITIALIZED);
    OK(cuFileDriverOpen());
    EQ(cuFileUseCount(), 1);
    OK(cuFileDriverOpen());
    EQ(cuFileUseCount(), 2);
    OK(cuFileDriverClose());
    EQ(cuFileUseCount(), 1);
    OK(cuFileDriverClose_v2());
    EQ(cuFileUseCount(), 0);
    CODE(cuFileDriverClose_v2(), CU_FILE_DRIVER_NOT_INITIALIZED);
}

/* The old name is a symbol of its own, which programs look up. */
static void both_names(void) {
    CUfileError_t (*close_v1)(void) = (CUfileError_t(*)(void))dlsym(RTLD_DEFAULT, "cuFileDriverClose");
    CHECK(close_v1);
    OK(cuFileDriverOpen());
    OK(close_v1());
    CODE(close_v1(), CU_FILE_DRIVER_NOT_INITIALIZED);
}

static void opened_by_first_use(int fd) {
    CUfileHandle_t handle = register_fd(fd);
    EQ(cuFileUseCount(), 1);
    OK(cuFileDriverOpen());
    EQ(cuFileUseCount(), 2);
    unsigned char bytes[512];
    EQ(cuFileRead(handle, bytes, sizeof bytes, 0, 0), sizeof bytes);
    SAME(bytes, 1, 0, sizeof bytes);
    OK(cuFileDriverClose());
    OK(cuFileDriverClose());
    EQ(cuFileUseCount(), 0);
}

/* The last close deregistered the file, so that it can be registered again. */
static void close_ends_registrations(int fd) {
    static unsigned char bytes[4096];
    CUfileHandle_t old = register_fd(fd);
    OK(cuFileBufRegister(bytes, sizeof bytes, 0));
    EQ(cuFileUseCount(), 1);
    OK(cuFileDriverClose());
    CODE(cuFileBufDeregister(bytes), CU_FILE_DRIVER_CLOSING);
    CUfileHandle_t handle = register_fd(fd);
    OK(cuFileBufRegister(bytes, sizeof bytes, 0));
    EQ(cuFileRead(handle, bytes, sizeof bytes, 0, 0), sizeof bytes);
    cuFileHandleDeregister(old == handle ? NULL : old);
    OK(cuFileBufDeregister(bytes));
    cuFileHandleDeregister(handle);
    EQ(cuFileUseCount(), 1);
    OK(cuFileDriverClose());
}

static void many_times(int fd) {
    for (int i = 0; i < 20; i++) {
        OK(cuFileDriverOpen());
        CUfileHandle_t handle = register_fd(fd);
        unsigned char bytes[100];
        EQ(cuFileRead(handle, bytes, sizeof bytes, i, 0), sizeof bytes);
        SAME(bytes, 1, i, sizeof bytes);
        OK(cuFileDriverClose());
    }
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    int fd = new_file(argv[1], "data", 1, 64 * KIB, 0);
    CHECK(fd >= 0);
    counted();
    both_names();
    opened_by_first_use(fd);
    close_ends_registrations(fd);
    many_times(fd);
    return 0;
}
