// A library for LD_PRELOAD that makes a program's syncs do nothing: the mistake that the power-cut scenarios must catch.
#define _GNU_SOURCE
#include <fcntl.h>

int fsync(int fd) { (void)fd; return 0; }
int fdatasync(int fd) { (void)fd; return 0; }
int syncfs(int fd) { (void)fd; return 0; }
int sync_file_range(int fd, off64_t from, off64_t count, unsigned flags) {
    (void)fd, (void)from, (void)count, (void)flags;
    return 0;
}
