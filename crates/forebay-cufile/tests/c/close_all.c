/* A program that closes all descriptors above 2, as daemons do, and opens files of its own under their numbers: the library
 * finds out. No call hangs, no byte goes into those files, none of them is closed, and later registrations work. */
#include "check.h"
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define LEN (24 * MIB)
#define STRANGE_LEN 8192

static int is_strange[4096];

/* Closes all, and gives every number to one file. */
static void replace_all(const char *folder) {
    EQ(syscall(SYS_close_range, 3u, ~0u, 0u), 0);
    memset(is_strange, 0, sizeof is_strange);
    int fd = open(path_in(folder, "stranger"), O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0);
    do {
        is_strange[fd] = 1;
        fd = dup(fd);
    } while (fd >= 0 && fd < 4096);
    EQ(errno, EMFILE);
    /* Some numbers are left to the program and to the library. */
    for (fd = 900; fd < 1024; fd++) {
        close(fd);
        is_strange[fd] = 0;
    }
}

static void strangers_are_open(void) {
    for (int fd = 0; fd < 4096; fd++) {
        if (!is_strange[fd]) continue;
        EQ(fcntl(fd, F_GETFD) >= 0, 1);
        EQ(lseek(fd, 0, SEEK_CUR), 0);
    }
}

struct load {
    const char *folder;
    CUfileHandle_t handle;
    void *memory;
    int is_gpu, key;
    volatile long good, bad;
    volatile int stop;
};

/* Reads and writes all the time; each call is whole or an error. */
static void *load(void *argument) {
    struct load *load = argument;
    while (!load->stop) {
        ssize_t got = cuFileRead(load->handle, load->memory, LEN, 0, 0);
        if (got == LEN) {
            if (load->is_gpu) GPU_SAME(load->memory, load->key, 0, 64 * KIB);
            else SAME((unsigned char *)load->memory, load->key, 0, 64 * KIB);
            load->good++;
        } else {
            EQ(got, -1);
            load->bad++;
        }
        if (cuFileWrite(load->handle, load->memory, LEN, 0, 0) != LEN) load->bad++;
    }
    return NULL;
}

static void refused(CUfileHandle_t handle, void *bytes) {
    MINUS_ONE(cuFileRead(handle, bytes, 4096, 0, 0), CU_FILE_HANDLE_NOT_REGISTERED);
    MINUS_ONE(cuFileWrite(handle, bytes, LEN, 0, 0), CU_FILE_HANDLE_NOT_REGISTERED);
}

/* A file that is registered now can be read and written. */
static void later_works(const char *folder, const char *name, void *memory, void *device) {
    int fd = new_file(folder, name, 31, LEN, 0);
    CHECK(fd >= 0);
    CUfileHandle_t handle = register_fd(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    EQ(cuFileRead(handle, memory, LEN, 0, 0), LEN);
    SAME((unsigned char *)memory, 31, 0, LEN);
    EQ(cuFileRead(handle, device, LEN, 0, 0), LEN);
    GPU_SAME(device, 31, 0, LEN);
    EQ(cuFileWrite(handle, memory, LEN, 0, 0), LEN);
    EQ(cuFileWrite(handle, device, 1000, 1, 0), 1000);
    cuFileHandleDeregister(handle);
    close(fd);
}

static void child(const char *folder) {
    alarm(100);
    gpu_start();
    OK(cuFileDriverOpen());
    unsigned char *bytes = aligned_alloc(4096, LEN);
    void *device = gpu_alloc(LEN);
    int fds[3];
    CUfileHandle_t handles[3];
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "old%d", i);
        fds[i] = new_file(folder, name, 20 + i, LEN, i == 1 ? O_DIRECT : 0);
        if (fds[i] < 0) fds[i] = new_file(folder, name, 20 + i, LEN, 0);
        handles[i] = register_fd(fds[i]);
        EQ(cuFileRead(handles[i], i ? device : (void *)bytes, LEN, 0, 0), LEN);
        EQ(cuFileWrite(handles[i], i ? device : (void *)bytes, LEN, 0, 0), LEN);
    }
    /* At rest. */
    replace_all(folder);
    for (int i = 0; i < 3; i++) refused(handles[i], bytes);
    later_works(folder, "later", bytes, device);
    for (int i = 0; i < 3; i++) cuFileHandleDeregister(handles[i]);
    strangers_are_open();
    /* In the middle of calls; the library's descriptors are no older than they have to be. */
    for (int round = 0; round < 3; round++) {
        for (int fd = 3; fd < 4096; fd++)
            if (is_strange[fd]) close(fd);
        struct load loads[2];
        pthread_t threads[2];
        for (int i = 0; i < 2; i++) {
            char name[16];
            snprintf(name, sizeof name, "load%d", i);
            int fd = new_file(folder, name, 40 + i, LEN, i ? O_DIRECT : 0);
            if (fd < 0) fd = new_file(folder, name, 40 + i, LEN, 0);
            loads[i] = (struct load){folder, register_fd(fd), i ? device : (void *)bytes, i, 40 + i, 0, 0, 0};
            EQ(pthread_create(&threads[i], NULL, load, &loads[i]), 0);
        }
        while (!loads[0].good || !loads[1].good) usleep(1000);
        replace_all(folder);
        while (!loads[0].bad || !loads[1].bad) usleep(1000);
        for (int i = 0; i < 2; i++) loads[i].stop = 1;
        for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
        for (int i = 0; i < 2; i++) refused(loads[i].handle, bytes);
        later_works(folder, "again", bytes, device);
        for (int i = 0; i < 2; i++) cuFileHandleDeregister(loads[i].handle);
        strangers_are_open();
    }
    /* Those that wait to be closed are not the library's any more. */
    sleep(12);
    strangers_are_open();
    OK(cuFileDriverClose());
    strangers_are_open();
    exit(0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    struct rlimit limit = {1024, 1024};
    setrlimit(RLIMIT_NOFILE, &limit);
    int stranger = open(path_in(argv[1], "stranger"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(stranger >= 0);
    unsigned char bytes[STRANGE_LEN], now[STRANGE_LEN + 1];
    memset(bytes, 0xEE, sizeof bytes);
    EQ(write(stranger, bytes, sizeof bytes), sizeof bytes);
    struct stat before, after;
    EQ(fstat(stranger, &before), 0);
    pid_t pid = fork();
    if (pid == 0) child(argv[1]);
    int status;
    EQ(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) FAIL("the program ended with status %x", status);
    /* Nor did its end write anything there. */
    EQ(fstat(stranger, &after), 0);
    EQ(after.st_size, STRANGE_LEN);
    EQ(after.st_mtim.tv_sec, before.st_mtim.tv_sec);
    EQ(after.st_mtim.tv_nsec, before.st_mtim.tv_nsec);
    EQ(after.st_blocks, before.st_blocks);
    EQ(pread(stranger, now, sizeof now, 0), STRANGE_LEN);
    CHECK(memcmp(bytes, now, sizeof bytes) == 0);
    return 0;
}
