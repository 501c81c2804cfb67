/* Opening, closing, registering and reading race each other: calls may be refused, but never crash, hang or lie. */
#include "check.h"

enum { THREADS = 8, ROUNDS = 60 };

static const char *folder;
static CUfileHandle_t shared;

static void *open_and_close(void *unused) {
    (void)unused;
    for (int i = 0; i < ROUNDS; i++) {
        OK(cuFileDriverOpen());
        CHECK(cuFileUseCount() >= 0);
        usleep(i % 7 * 100);
        CUfileError_t answer = cuFileDriverClose();
        CHECK(answer.err == CU_FILE_SUCCESS || answer.err == CU_FILE_DRIVER_CLOSING ||
              answer.err == CU_FILE_DRIVER_NOT_INITIALIZED);
    }
    return NULL;
}

/* The last close may come between any two of these calls. */
static void *read_meanwhile(void *argument) {
    int me = (int)(intptr_t)argument;
    int fd = open(path_in(folder, "data"), O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    unsigned char *bytes = malloc(40000);
    for (int i = 0; i < ROUNDS; i++) {
        CUfileHandle_t handle;
        CUfileError_t answer = try_register(&handle, fd);
        if (answer.err == CU_FILE_SUCCESS) {
            ssize_t got = cuFileRead(handle, bytes, 40000, me + i, 0);
            if (got >= 0) {
                EQ(got, 40000);
                SAME(bytes, 27, me + i, 40000);
            }
            cuFileHandleDeregister(handle);
        } else {
            CHECK(answer.err == CU_FILE_DRIVER_CLOSING || answer.err == CU_FILE_HANDLE_ALREADY_REGISTERED ||
                  answer.err == CU_FILE_DRIVER_NOT_INITIALIZED);
        }
        /* A handle that another thread deregisters and registers again. */
        CUfileHandle_t other = __atomic_load_n(&shared, __ATOMIC_ACQUIRE);
        if (cuFileRead(other, bytes, 1000, 5, 0) == 1000) SAME(bytes, 27, 5, 1000);
    }
    free(bytes);
    close(fd);
    return NULL;
}

static void *exchange(void *unused) {
    (void)unused;
    int fd = open(path_in(folder, "data"), O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    for (int i = 0; i < 4 * ROUNDS; i++) {
        CUfileHandle_t handle;
        if (try_register(&handle, fd).err == CU_FILE_SUCCESS) {
            __atomic_store_n(&shared, handle, __ATOMIC_RELEASE);
            usleep(200);
            cuFileHandleDeregister(handle);
        }
    }
    close(fd);
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    folder = argv[1];
    close(new_file(folder, "data", 27, 200000, 0));
    pthread_t threads[THREADS];
    for (intptr_t i = 0; i < THREADS; i++) {
        void *(*part)(void *) = i == 0 ? exchange : i < 4 ? open_and_close : read_meanwhile;
        EQ(pthread_create(&threads[i], NULL, part, (void *)i), 0);
    }
    for (int i = 0; i < THREADS; i++) EQ(pthread_join(threads[i], NULL), 0);
    while (cuFileUseCount() > 0) OK(cuFileDriverClose());
    /* Afterwards it works as ever. */
    int fd = open(path_in(folder, "data"), O_RDONLY);
    CUfileHandle_t handle = register_fd(fd);
    unsigned char bytes[100];
    EQ(cuFileRead(handle, bytes, sizeof bytes, 0, 0), sizeof bytes);
    SAME(bytes, 27, 0, sizeof bytes);
    return 0;
}
