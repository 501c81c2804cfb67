/* Uses the library a little, so that it looks at all that the environment names. Prints whether its rights are its caller's. */
#include "check.h"
#include <sys/auxv.h>

int main(int argc, char **argv) {
    CHECK(argc == 2);
    printf("AT_SECURE=%lu\n", getauxval(AT_SECURE));
    OK(cuFileDriverOpen());
    int fd = open(argv[1], O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    CUfileHandle_t handle = register_fd(fd);
    char bytes[6];
    printf("read=%zd\n", cuFileRead(handle, bytes, sizeof bytes, 0, 0));
    bool forced = true;
    OK(cuFileGetParameterBool(CUFILE_PARAM_FORCE_COMPAT_MODE, &forced));
    printf("forced=%d\n", forced);
    cuFileHandleDeregister(handle);
    OK(cuFileDriverClose());
    return 0;
}
