/* Which descriptors can be registered, what the others answer, and what a handle is afterwards. */
#include "check.h"

static void accepted(const char *folder) {
    int flags[] = {0, O_SYNC, O_NOATIME, O_NONBLOCK, O_NOFOLLOW, O_NOCTTY};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        int fd = new_file(folder, "accepted", 2, 8192, flags[i]);
        if (fd < 0) continue;
        /* NVIDIA's documents call the last three unsupported; regular files do not care. */
        CUfileHandle_t handle;
        CUfileError_t answer = try_register(&handle, fd);
        if (answer.err == CU_FILE_SUCCESS) {
            unsigned char bytes[300];
            EQ(cuFileRead(handle, bytes, sizeof bytes, 100, 0), sizeof bytes);
            SAME(bytes, 2, 100, sizeof bytes);
            cuFileHandleDeregister(handle);
        } else {
            CHECK(i >= 3);
            EQ(answer.err, CU_FILE_INVALID_FILE_OPEN_FLAG);
        }
        close(fd);
    }
    int fd = new_file(folder, "direct", 2, 8192, O_DIRECT);
    if (fd < 0) {
        printf("skipped: no O_DIRECT in %s\n", folder);
        return;
    }
    cuFileHandleDeregister(register_fd(fd));
    close(fd);
}

static void refused(const char *folder) {
    CUfileHandle_t handle;
    int fd = new_file(folder, "append", 2, 100, O_APPEND);
    CODE(try_register(&handle, fd), CU_FILE_INVALID_FILE_OPEN_FLAG);
    close(fd);
    fd = open(folder, O_RDONLY | O_DIRECTORY);
    CODE(try_register(&handle, fd), CU_FILE_INVALID_FILE_TYPE);
    close(fd);
    int ends[2];
    EQ(pipe(ends), 0);
    CODE(try_register(&handle, ends[0]), CU_FILE_INVALID_FILE_TYPE);
    CODE(try_register(&handle, ends[1]), CU_FILE_INVALID_FILE_TYPE);
    close(ends[0]);
    close(ends[1]);
    fd = open("/dev/null", O_RDWR);
    CODE(try_register(&handle, fd), CU_FILE_INVALID_FILE_TYPE);
    close(fd);
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    CODE(try_register(&handle, fd), CU_FILE_INVALID_FILE_TYPE);
    close(fd);
    CODE(try_register(&handle, -1), CU_FILE_INVALID_VALUE);
    CODE(try_register(&handle, 999), CU_FILE_INVALID_VALUE);
    CODE(cuFileHandleRegister(&handle, NULL), CU_FILE_INVALID_VALUE);
    CODE(try_register(NULL, 0), CU_FILE_INVALID_VALUE);
}

static void other_types(const char *folder) {
    int fd = new_file(folder, "types", 2, 100, 0);
    CUfileHandle_t handle;
    CUfileFSOps_t operations;
    memset(&operations, 0, sizeof operations);
    CUfileDescr_t descr;
    memset(&descr, 0, sizeof descr);
    descr.handle.fd = fd;
    descr.type = CU_FILE_HANDLE_TYPE_OPAQUE_WIN32;
    CODE(cuFileHandleRegister(&handle, &descr), CU_FILE_IO_NOT_SUPPORTED);
    descr.type = (CUfileFileHandleType)77;
    CODE(cuFileHandleRegister(&handle, &descr), CU_FILE_IO_NOT_SUPPORTED);
    descr.type = CU_FILE_HANDLE_TYPE_USERSPACE_FS;
    CODE(cuFileHandleRegister(&handle, &descr), CU_FILE_IO_NOT_SUPPORTED);
    descr.fs_ops = &operations;
    descr.handle.handle = &operations;
    OK(cuFileHandleRegister(&handle, &descr));
    unsigned char bytes[10];
    MINUS_ONE(cuFileRead(handle, bytes, sizeof bytes, 0, 0), CU_FILE_DRIVER_CLOSING);
    cuFileHandleDeregister(handle);
    close(fd);
}

static void once_each(const char *folder) {
    int fd = new_file(folder, "once", 2, 100, 0);
    CUfileHandle_t handle = register_fd(fd), second;
    CODE(try_register(&second, fd), CU_FILE_HANDLE_ALREADY_REGISTERED);
    cuFileHandleDeregister(handle);
    handle = register_fd(fd);
    cuFileHandleDeregister(handle);
    /* Several descriptors of one file are several files. */
    CUfileHandle_t handles[128];
    int fds[128];
    for (int i = 0; i < 128; i++) {
        fds[i] = i % 2 ? dup(fd) : open(path_in(folder, "once"), O_RDONLY);
        handles[i] = register_fd(fds[i]);
    }
    for (int i = 0; i < 128; i++) {
        unsigned char bytes[100];
        EQ(cuFileRead(handles[i], bytes, sizeof bytes, 0, 0), sizeof bytes);
        SAME(bytes, 2, 0, sizeof bytes);
        cuFileHandleDeregister(handles[i]);
        close(fds[i]);
    }
    close(fd);
}

static void afterwards(const char *folder) {
    int fd = new_file(folder, "after", 2, 100, 0);
    CUfileHandle_t handle = register_fd(fd);
    cuFileHandleDeregister(handle);
    unsigned char bytes[100];
    MINUS_ONE(cuFileRead(handle, bytes, sizeof bytes, 0, 0), CU_FILE_HANDLE_NOT_REGISTERED);
    MINUS_ONE(cuFileWrite(handle, bytes, sizeof bytes, 0, 0), CU_FILE_HANDLE_NOT_REGISTERED);
    cuFileHandleDeregister(handle);
    cuFileHandleDeregister(NULL);
    cuFileHandleDeregister((CUfileHandle_t)0x1234);
    EQ(pread(fd, bytes, sizeof bytes, 0), sizeof bytes);
    SAME(bytes, 2, 0, sizeof bytes);
    close(fd);
    /* A descriptor's number may come back for another file; the old handle does not follow. */
    int again = new_file(folder, "another", 3, 100, 0);
    CUfileHandle_t other = register_fd(again);
    EQ(cuFileRead(other, bytes, sizeof bytes, 0, 0), sizeof bytes);
    SAME(bytes, 3, 0, sizeof bytes);
    cuFileHandleDeregister(other);
    close(again);
}

/* A program closed the descriptor and forgot the handle: the number's new file can be registered all the same. */
static void closed_before(const char *folder) {
    int fd = new_file(folder, "before", 4, 100, 0);
    CUfileHandle_t old = register_fd(fd);
    close(fd);
    int again = new_file(folder, "behind", 5, 100, 0);
    EQ(again, fd);
    CUfileHandle_t handle;
    OK(try_register(&handle, again));
    unsigned char bytes[100];
    EQ(cuFileRead(handle, bytes, sizeof bytes, 0, 0), sizeof bytes);
    SAME(bytes, 5, 0, sizeof bytes);
    MINUS_ONE(cuFileRead(old, bytes, sizeof bytes, 0, 0), CU_FILE_HANDLE_NOT_REGISTERED);
    cuFileHandleDeregister(handle);
    cuFileHandleDeregister(old);
    close(again);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    accepted(argv[1]);
    refused(argv[1]);
    other_types(argv[1]);
    once_each(argv[1]);
    afterwards(argv[1]);
    closed_before(argv[1]);
    return 0;
}
