/* Linked by pkg-config: asks the library that the loader found for its version. */
#include <cufile.h>
#include <stdio.h>

int main(void) {
    int version = 0;
    CUfileError_t status = cuFileGetVersion(&version);
    printf("cuFile %d\n", version);
    return status.err != CU_FILE_SUCCESS || version != 1150;
}
