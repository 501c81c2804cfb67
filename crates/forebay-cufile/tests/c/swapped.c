/* A descriptor that is closed, or given to another file, under its handle: no byte goes astray, and the next call says so. */
#include "check.h"
#include <sys/mman.h>
#include <time.h>

#define STRANGE 0xEE
#define STRANGE_LEN 8192

/* The unrelated file, which must stay as it is. */
static int stranger;
static struct stat stranger_before;

static void make_stranger(const char *folder) {
    stranger = open(path_in(folder, "stranger"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(stranger >= 0);
    unsigned char bytes[STRANGE_LEN];
    memset(bytes, STRANGE, sizeof bytes);
    EQ(write(stranger, bytes, sizeof bytes), sizeof bytes);
    EQ(fstat(stranger, &stranger_before), 0);
}

static void stranger_is_untouched(void) {
    struct stat now;
    EQ(fstat(stranger, &now), 0);
    EQ(now.st_size, STRANGE_LEN);
    EQ(now.st_mtim.tv_sec, stranger_before.st_mtim.tv_sec);
    EQ(now.st_mtim.tv_nsec, stranger_before.st_mtim.tv_nsec);
    unsigned char bytes[STRANGE_LEN];
    EQ(pread(stranger, bytes, sizeof bytes, 0), sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++) EQ(bytes[i], STRANGE);
}

/* Gives the number `fd` to the stranger as soon as `path` has bytes on storage, or `watched` is not `before` any more. */
struct swap {
    int fd;
    char path[4096];
    volatile unsigned char *watched;
    unsigned char before;
    off_t at; /* blocks that the file had before */
};

static void *swap_soon(void *argument) {
    struct swap *swap = argument;
    for (;;) {
        struct stat now;
        if (swap->watched ? *swap->watched != swap->before
                          : stat(swap->path, &now) == 0 && now.st_blocks > swap->at)
            break;
    }
    EQ(dup2(stranger, swap->fd), swap->fd);
    return NULL;
}

static pthread_t start_swap(struct swap *swap) {
    pthread_t thread;
    EQ(pthread_create(&thread, NULL, swap_soon, swap), 0);
    return thread;
}

static int sparse(const char *folder, const char *name, size_t len, int flags) {
    int fd = open(path_in(folder, name), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | flags, 0600);
    if (fd >= 0) EQ(ftruncate(fd, (off_t)len), 0);
    return fd;
}

static void *map_bytes(size_t len) {
    void *bytes = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(bytes != MAP_FAILED);
    return bytes;
}

static void says_so(CUfileHandle_t handle, void *bytes) {
    MINUS_ONE(cuFileRead(handle, bytes, 4096, 0, 0), CU_FILE_HANDLE_NOT_REGISTERED);
    MINUS_ONE(cuFileWrite(handle, bytes, 4096, 0, 0), CU_FILE_HANDLE_NOT_REGISTERED);
    MINUS_ONE(cuFileRead(handle, bytes, 2 * MIB, 0, 0), CU_FILE_HANDLE_NOT_REGISTERED);
    CUfileIOVec_t parts[2] = {{bytes, 100}, {(char *)bytes + 4096, 100}};
    MINUS_ONE(cuFileReadv(handle, parts, 2, 0, 0), CU_FILE_HANDLE_NOT_REGISTERED);
    CUfileBatchHandle_t batch;
    OK(cuFileBatchIOSetUp(&batch, 2));
    CUfileIOParams_t entries[2];
    memset(entries, 0, sizeof entries);
    for (int i = 0; i < 2; i++) {
        entries[i].mode = CUFILE_BATCH;
        entries[i].fh = handle;
        entries[i].opcode = i ? CUFILE_WRITE : CUFILE_READ;
        entries[i].u.batch.devPtr_base = bytes;
        entries[i].u.batch.size = 4096;
    }
    OK(cuFileBatchIOSubmit(batch, 2, entries, 0));
    CUfileIOEvents_t events[2];
    unsigned count = 2;
    OK(cuFileBatchIOGetStatus(batch, 2, &count, events, NULL));
    EQ(count, 2);
    for (int i = 0; i < 2; i++) {
        EQ(events[i].status, CUFILE_FAILED);
        EQ(events[i].ret, -CU_FILE_HANDLE_NOT_REGISTERED);
    }
    cuFileBatchIODestroy(batch);
    CUstream stream = gpu_stream(0);
    size_t size = 4096;
    off_t offset = 0, at = 0;
    ssize_t done = 77;
    CODE(cuFileReadAsync(handle, bytes, &size, &offset, &at, &done, stream), CU_FILE_HANDLE_NOT_REGISTERED);
    EQ(done, 77);
}

/* One read of a gibibyte: it ends with the file that it began with. */
static void in_a_read(const char *folder, int flags) {
    size_t len = 1024 * MIB;
    int fd = sparse(folder, "read", len, flags);
    if (fd < 0) {
        printf("skipped: no O_DIRECT in %s\n", folder);
        return;
    }
    CUfileHandle_t handle = register_fd(fd);
    unsigned char *bytes = map_bytes(len);
    memset(bytes, 1, len);
    struct swap swap = {.fd = fd, .watched = bytes, .before = 1};
    pthread_t thread = start_swap(&swap);
    EQ(cuFileRead(handle, bytes, len, 0, 0), len);
    pthread_join(thread, NULL);
    for (size_t i = 0; i < len / 8; i++) CHECK(((uint64_t *)bytes)[i] == 0);
    says_so(handle, bytes);
    cuFileHandleDeregister(handle);
    munmap(bytes, len);
    close(fd);
    unlink(path_in(folder, "read"));
    stranger_is_untouched();
}

static void write_ends_in(const char *folder, const char *name, const void *bytes, size_t len) {
    int fd = open(path_in(folder, name), O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    void *there = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(there != MAP_FAILED);
    CHECK(memcmp(there, bytes, len) == 0);
    munmap(there, len);
    close(fd);
}

static void in_a_write(const char *folder, int flags) {
    size_t len = 1024 * MIB;
    int fd = sparse(folder, "written", len, flags);
    if (fd < 0) return;
    CUfileHandle_t handle = register_fd(fd);
    unsigned char *bytes = map_bytes(len);
    for (size_t i = 0; i < len / 8; i++) ((uint64_t *)bytes)[i] = i * 0x9E3779B97F4A7C15u + 1;
    struct swap swap = {.fd = fd};
    snprintf(swap.path, sizeof swap.path, "%s", path_in(folder, "written"));
    pthread_t thread = start_swap(&swap);
    EQ(cuFileWrite(handle, bytes, len, 0, 0), len);
    pthread_join(thread, NULL);
    stranger_is_untouched();
    write_ends_in(folder, "written", bytes, len);
    says_so(handle, bytes);
    cuFileHandleDeregister(handle);
    munmap(bytes, len);
    close(fd);
    unlink(path_in(folder, "written"));
    stranger_is_untouched();
}

static void in_a_batch(const char *folder) {
    enum { ENTRIES = 32 };
    size_t each = 4 * MIB, len = ENTRIES * each;
    int fd = sparse(folder, "batch", len, 0);
    CUfileHandle_t handle = register_fd(fd);
    unsigned char *bytes = map_bytes(len);
    for (size_t i = 0; i < len / 8; i++) ((uint64_t *)bytes)[i] = i * 0x9E3779B97F4A7C15u + 7;
    CUfileBatchHandle_t batch;
    OK(cuFileBatchIOSetUp(&batch, ENTRIES));
    CUfileIOParams_t entries[ENTRIES];
    memset(entries, 0, sizeof entries);
    for (int i = 0; i < ENTRIES; i++) {
        entries[i].mode = CUFILE_BATCH;
        entries[i].fh = handle;
        entries[i].opcode = CUFILE_WRITE;
        entries[i].u.batch.devPtr_base = bytes;
        entries[i].u.batch.devPtr_offset = (off_t)(i * each);
        entries[i].u.batch.file_offset = (off_t)(i * each);
        entries[i].u.batch.size = each;
    }
    OK(cuFileBatchIOSubmit(batch, ENTRIES, entries, 0));
    EQ(dup2(stranger, fd), fd);
    CUfileIOEvents_t events[ENTRIES];
    unsigned count = ENTRIES;
    OK(cuFileBatchIOGetStatus(batch, ENTRIES, &count, events, NULL));
    EQ(count, ENTRIES);
    for (int i = 0; i < ENTRIES; i++) {
        EQ(events[i].status, CUFILE_COMPLETE);
        EQ(events[i].ret, each);
    }
    cuFileBatchIODestroy(batch);
    stranger_is_untouched();
    write_ends_in(folder, "batch", bytes, len);
    cuFileHandleDeregister(handle);
    munmap(bytes, len);
    close(fd);
}

static volatile int gate;

static void wait_at_gate(void *data) {
    (void)data;
    while (!gate) usleep(100);
}

/* Before the stream gets there: nothing moves. While it is there: the old file has it all. */
static void on_a_stream(const char *folder) {
    size_t len = 64 * MIB;
    int fd = sparse(folder, "stream", len, 0);
    CUfileHandle_t handle = register_fd(fd);
    CUstream stream = gpu_stream(0);
    void *memory = gpu_alloc(len);
    gpu_fill(memory, 5, 0, len);
    size_t size = len;
    off_t offset = 0, at = 0;
    ssize_t done = 77;
    struct swap swap = {.fd = fd};
    snprintf(swap.path, sizeof swap.path, "%s", path_in(folder, "stream"));
    pthread_t thread = start_swap(&swap);
    OK(cuFileWriteAsync(handle, memory, &size, &offset, &at, &done, stream));
    gpu_wait(stream);
    pthread_join(thread, NULL);
    EQ(done, len);
    stranger_is_untouched();
    int plain = open(path_in(folder, "stream"), O_RDONLY | O_CLOEXEC);
    file_has(plain, 5, 0, 0, len);
    close(plain);
    cuFileHandleDeregister(handle);
    close(fd);

    fd = sparse(folder, "stream", len, 0);
    handle = register_fd(fd);
    gate = 0;
    done = 77;
    gpu_host_function(stream, wait_at_gate, NULL);
    OK(cuFileWriteAsync(handle, memory, &size, &offset, &at, &done, stream));
    EQ(dup2(stranger, fd), fd);
    gate = 1;
    gpu_wait(stream);
    EQ(done, -CU_FILE_HANDLE_NOT_REGISTERED);
    stranger_is_untouched();
    cuFileHandleDeregister(handle);
    close(fd);
    gpu_free(memory);
}

static void closed(const char *folder) {
    int fd = new_file(folder, "closed", 8, 4 * MIB, 0);
    CUfileHandle_t handle = register_fd(fd);
    unsigned char *bytes = calloc(1, 4 * MIB);
    close(fd);
    says_so(handle, bytes);
    /* The same file under the same number, opened again, is the registered file. */
    int again = open(path_in(folder, "closed"), O_RDWR | O_CLOEXEC);
    EQ(again, fd);
    EQ(cuFileRead(handle, bytes, 4 * MIB, 0, 0), 4 * MIB);
    SAME(bytes, 8, 0, 4 * MIB);
    cuFileHandleDeregister(handle);
    close(again);
    free(bytes);
}

/* How many descriptors of this process are of a file. */
static int opened(const char *path) {
    int count = 0;
    for (int fd = 0; fd < 1024; fd++) {
        char link[64], target[4096];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t len = readlink(link, target, sizeof target - 1);
        if (len > 0 && strncmp(target, path, (size_t)len) == 0 && path[len] == 0) count++;
    }
    return count;
}

/* A file that the program closed, and whose handle it forgot, is closed in the end. */
static void forgotten(const char *folder) {
    char path[4096];
    int fd = new_file(folder, "forgotten", 8, 1 * MIB, 0);
    CHECK(realpath(path_in(folder, "forgotten"), path));
    CUfileHandle_t handle = register_fd(fd);
    CHECK(opened(path) > 1);
    close(fd);
    for (int seconds = 0; opened(path); seconds++) {
        CHECK(seconds < 40);
        sleep(1);
    }
    unsigned char *bytes = calloc(1, 4 * MIB);
    says_so(handle, bytes);
    free(bytes);
    cuFileHandleDeregister(handle);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    gpu_start();
    OK(cuFileDriverOpen());
    make_stranger(argv[1]);
    in_a_read(argv[1], 0);
    in_a_read(argv[1], O_DIRECT);
    in_a_write(argv[1], 0);
    in_a_write(argv[1], O_DIRECT);
    in_a_batch(argv[1]);
    on_a_stream(argv[1]);
    closed(argv[1]);
    forgotten(argv[1]);
    char memory[] = "/dev/shm/forebay-swapped-XXXXXX";
    if (mkdtemp(memory)) {
        in_a_read(memory, 0);
        in_a_write(memory, 0);
        in_a_batch(memory);
        on_a_stream(memory);
        unlink(path_in(memory, "batch"));
        unlink(path_in(memory, "stream"));
        rmdir(memory);
    } else {
        printf("skipped: no /dev/shm\n");
    }
    return 0;
}
