/* The file fails: too large, a full file system, a drive that loses its end. errno says which. */
#include "check.h"
#include <linux/fs.h>
#include <linux/loop.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>

static void too_large(const char *folder, char *device) {
    int fd = new_file(folder, "limited", 29, 4096, 0);
    CUfileHandle_t handle = register_fd(fd);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit old, small;
    EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 64 * KIB;
    EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    MINUS_ONE(cuFileWrite(handle, device, 4096, 64 * KIB, 0), EFBIG);
    /* What fits is written, and counts. */
    EQ(cuFileWrite(handle, device, 1 * MIB, 0, 0), 64 * KIB);
    EQ(cuFileWrite(handle, device, 4 * MIB, 0, 0), 64 * KIB);
    struct stat about;
    EQ(fstat(fd, &about), 0);
    EQ(about.st_size, 64 * KIB);
    EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
    EQ(cuFileWrite(handle, device, 1 * MIB, 0, 0), 1 * MIB);
    cuFileHandleDeregister(handle);
    close(fd);
}

static void put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) perror(path);
    close(fd);
}

/* Mounts of one's own: as root, or as the root of a new user namespace. */
static int own_mounts(void) {
    if (getuid() == 0) return unshare(CLONE_NEWNS);
    char users[64], groups[64];
    snprintf(users, sizeof users, "0 %d 1", (int)getuid());
    snprintf(groups, sizeof groups, "0 %d 1", (int)getgid());
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return -1;
    put("/proc/self/setgroups", "deny");
    put("/proc/self/uid_map", users);
    put("/proc/self/gid_map", groups);
    return 0;
}

/* A tmpfs of our own, of one MiB. */
static void full(const char *folder) {
    char mount_point[4096];
    snprintf(mount_point, sizeof mount_point, "%s/small", folder);
    mkdir(mount_point, 0700);
    if (own_mounts() != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", mount_point, "tmpfs", 0, "size=1m") != 0) {
        printf("skipped: a full file system needs a mount of one's own: %s\n", strerror(errno));
        return;
    }
    gpu_start();
    char *device = gpu_alloc(4 * MIB);
    int fd = new_file(mount_point, "data", 29, 4096, 0);
    CUfileHandle_t handle = register_fd(fd);
    /* A write of which a part fits is short, and the file ends with it; the next one has no room. */
    gpu_fill(device, 33, 0, 4 * MIB);
    ssize_t answer = cuFileWrite(handle, device, 4 * MIB, 16 * MIB, 0);
    CHECK(answer > 512 * (ssize_t)KIB && answer < 1 * (ssize_t)MIB);
    struct stat about;
    EQ(fstat(fd, &about), 0);
    EQ(about.st_size, 16 * MIB + answer);
    file_has(fd, 33, 0, 16 * MIB, answer);
    /* So is one of several pieces of memory, although the host's third piece could be written before the GPU's. */
    EQ(ftruncate(fd, 4096), 0);
    char *host = calloc(1, 768 * KIB);
    CUfileIOVec_t parts[] = {{host, 384 * KIB}, {device, 384 * KIB}, {host + 384 * KIB, 384 * KIB}};
    answer = cuFileWritev(handle, parts, 3, 16 * MIB, 0);
    CHECK(answer > 768 * (ssize_t)KIB && answer < 1 * (ssize_t)MIB);
    EQ(fstat(fd, &about), 0);
    EQ(about.st_size, 16 * MIB + answer);
    free(host);
    while (answer > 0) answer = pwrite(fd, "x", 1, 32 * (off_t)MIB + lseek(fd, 4096, SEEK_CUR)); /* every page */
    MINUS_ONE(cuFileWrite(handle, device, 2 * MIB, 64 * MIB, 0), ENOSPC);
    CUfileIOEvents_t event = batch_of_one(handle, CUFILE_WRITE, device, 2 * MIB, 128 * MIB);
    EQ(event.status, CUFILE_FAILED);
    EQ((ssize_t)event.ret, -ENOSPC);
    EQ(cuFileRead(handle, device, 4096, 0, 0), 4096);
    GPU_SAME(device, 29, 0, 4096);
    cuFileHandleDeregister(handle);
    close(fd);
}

/* A block device whose backing file was cut: reads past the cut fail with EIO. */
static void failing_drive(const char *folder, char *device) {
    int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC), number = -1;
    if (control >= 0) number = ioctl(control, LOOP_CTL_GET_FREE);
    char name[64];
    snprintf(name, sizeof name, "/dev/loop%d", number);
    int drive = number < 0 ? -1 : open(name, O_RDWR | O_CLOEXEC);
    int backing = new_file(folder, "drive", 30, 4 * MIB, 0);
    if (drive < 0 || ioctl(drive, LOOP_SET_FD, backing) != 0) {
        printf("skipped: a failing drive needs a loop device: %s\n", strerror(errno));
        return;
    }
    struct loop_info64 info;
    memset(&info, 0, sizeof info);
    info.lo_flags = LO_FLAGS_AUTOCLEAR; /* ends with its last descriptor, however this program ends */
    EQ(ioctl(drive, LOOP_SET_STATUS64, &info), 0);
    CUfileHandle_t handle = register_fd(drive);
    EQ(cuFileRead(handle, device, 100000, 4097, 0), 100000);
    GPU_SAME(device, 30, 4097, 100000);
    gpu_fill(device, 31, 0, 5000);
    EQ(cuFileWrite(handle, device, 5000, 123, 0), 5000);
    EQ(cuFileRead(handle, device, 5000, 123, 0), 5000);
    GPU_SAME(device, 31, 0, 5000);
    EQ(fsync(drive), 0);
    EQ(ftruncate(backing, 1 * MIB), 0);
    EQ(ioctl(drive, BLKFLSBUF, 0), 0);
    MINUS_ONE(cuFileRead(handle, device, 64 * KIB, 3 * MIB, 0), EIO);
    unsigned char *host = malloc(64 * KIB);
    MINUS_ONE(cuFileRead(handle, host, 64 * KIB, 3 * MIB, 0), EIO);
    /* What is there is still there. */
    EQ(cuFileRead(handle, host, 64 * KIB, 512 * KIB, 0), 64 * KIB);
    SAME(host, 30, 512 * KIB, 64 * KIB);
    cuFileHandleDeregister(handle);
    free(host);
    close(drive);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    if (getenv("CASE")) { /* a namespace is to be made before there are threads */
        full(argv[1]);
        return 0;
    }
    gpu_start();
    char *device = gpu_alloc(4 * MIB);
    too_large(argv[1], device);
    failing_drive(argv[1], device);
    return 0;
}
