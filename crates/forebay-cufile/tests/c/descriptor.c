/* The descriptor stays the caller's: flags, position and POSIX locks survive, and so do descriptors 0, 1 and 2. */
#include "check.h"

/* Whether another process finds the first byte locked. */
static int locked(const char *path) {
    pid_t child = fork();
    if (child == 0) {
        int fd = open(path, O_RDWR);
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
        if (fd < 0 || fcntl(fd, F_GETLK, &lock) != 0) _exit(2);
        _exit(lock.l_type == F_UNLCK ? 0 : 1);
    }
    int status;
    EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) < 2);
    return WEXITSTATUS(status);
}

static void locks_survive(const char *folder, int direct) {
    char path[4096];
    snprintf(path, sizeof path, "%s", path_in(folder, "locked"));
    int fd = new_file(folder, "locked", 6, 1 * MIB, direct);
    if (fd < 0) {
        printf("skipped: no O_DIRECT in %s\n", folder);
        return;
    }
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    EQ(fcntl(fd, F_SETLK, &lock), 0);
    EQ(locked(path), 1);
    CUfileHandle_t handle = register_fd(fd);
    EQ(locked(path), 1);
    unsigned char *bytes = aligned_alloc(4096, 64 * KIB);
    EQ(cuFileRead(handle, bytes, 64 * KIB, 0, 0), 64 * KIB);
    EQ(cuFileRead(handle, bytes, 1000, 1, 0), 1000);
    EQ(cuFileWrite(handle, bytes, 1000, 1, 0), 1000);
    cuFileHandleDeregister(handle);
    EQ(locked(path), 1);
    handle = register_fd(fd);
    cuFileHandleDeregister(handle);
    EQ(locked(path), 1);
    OK(cuFileDriverClose());
    EQ(locked(path), 1);
    close(fd);
    EQ(locked(path), 0);
    free(bytes);
}

static void flags_and_position(const char *folder, int direct) {
    int fd = new_file(folder, "flags", 6, 1 * MIB, direct);
    if (fd < 0) return;
    int flags = fcntl(fd, F_GETFL), of_descriptor = fcntl(fd, F_GETFD);
    EQ(lseek(fd, 12345, SEEK_SET), 12345);
    CUfileHandle_t handle = register_fd(fd);
    unsigned char *bytes = aligned_alloc(4096, 64 * KIB);
    EQ(cuFileRead(handle, bytes, 64 * KIB, 0, 0), 64 * KIB);
    SAME(bytes, 6, 0, 64 * KIB);
    EQ(cuFileWrite(handle, bytes, 777, 3, 0), 777);
    EQ(fcntl(fd, F_GETFL), flags);
    cuFileHandleDeregister(handle);
    EQ(fcntl(fd, F_GETFL), flags);
    EQ(fcntl(fd, F_GETFD), of_descriptor);
    EQ(lseek(fd, 0, SEEK_CUR), 12345);
    /* Still good for the caller's own calls. */
    EQ(pread(fd, bytes, 4096, 8192), 4096);
    SAME(bytes, 6, 8192, 4096);
    free(bytes);
    close(fd);
}

/* No descriptor of forebay's may be 0, 1 or 2, open or closed. */
static void standard_descriptors(const char *folder) {
    struct stat before[3], after;
    for (int i = 0; i < 3; i++) EQ(fstat(i, &before[i]), 0);
    int fd = new_file(folder, "standard", 6, 4096, 0);
    OK(cuFileDriverOpen());
    cuFileHandleDeregister(register_fd(fd));
    OK(cuFileDriverClose());
    for (int i = 0; i < 3; i++) {
        EQ(fstat(i, &after), 0);
        CHECK(after.st_dev == before[i].st_dev && after.st_ino == before[i].st_ino);
    }
    close(fd);
}

/* A daemon has closed them: the library must leave the numbers free. */
static void closed_standard_descriptors(const char *folder) {
    pid_t child = fork();
    if (child == 0) {
        int fd = new_file(folder, "daemon", 6, 4096, 0);
        int saved = dup2(2, 100);
        (void)saved;
        close(0);
        close(1);
        unsigned char bytes[100];
        CUfileHandle_t handle;
        if (try_register(&handle, fd).err != CU_FILE_SUCCESS) _exit(1);
        if (cuFileRead(handle, bytes, sizeof bytes, 0, 0) != sizeof bytes) _exit(2);
        struct stat status;
        if (fstat(0, &status) == 0 || fstat(1, &status) == 0) _exit(3);
        _exit(0);
    }
    int status;
    EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status));
    EQ(WEXITSTATUS(status), 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    closed_standard_descriptors(argv[1]); /* first: a child may use the library only if its parent has not */
    locks_survive(argv[1], 0);
    locks_survive(argv[1], O_DIRECT);
    flags_and_position(argv[1], 0);
    flags_and_position(argv[1], O_DIRECT);
    standard_descriptors(argv[1]);
    return 0;
}
