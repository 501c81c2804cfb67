/* Registering memory: refusals, and that it is never needed. */
#include "check.h"

static void rules(void) {
    char *device = gpu_alloc(1 * MIB);
    CODE(cuFileBufDeregister(device), CU_FILE_MEMORY_NOT_REGISTERED);
    OK(cuFileBufRegister(device, 1 * MIB, 0));
    EQ(cuFileUseCount(), 1);
    CODE(cuFileBufRegister(device, 1 * MIB, 0), CU_FILE_MEMORY_ALREADY_REGISTERED);
    CODE(cuFileBufRegister(device, 4 * KIB, 0), CU_FILE_MEMORY_ALREADY_REGISTERED);
    OK(cuFileBufRegister(device + 64 * KIB, 64 * KIB, 0)); /* overlaps, another base */
    CODE(cuFileBufDeregister(device + 1), CU_FILE_MEMORY_NOT_REGISTERED);
    OK(cuFileBufDeregister(device + 64 * KIB));
    OK(cuFileBufDeregister(device));
    CODE(cuFileBufDeregister(device), CU_FILE_MEMORY_NOT_REGISTERED);
    CODE(cuFileBufRegister(device, 2 * MIB, 0), CU_FILE_CUDA_POINTER_RANGE_ERROR);
    CODE(cuFileBufRegister(device + 512 * KIB, 512 * KIB + 1, 0), CU_FILE_CUDA_POINTER_RANGE_ERROR);
    OK(cuFileBufRegister(device + 512 * KIB, 512 * KIB, 0));
    OK(cuFileBufDeregister(device + 512 * KIB));
    CODE(cuFileBufRegister(NULL, 4096, 0), CU_FILE_INVALID_VALUE);
    CODE(cuFileBufRegister(device, 0, 0), CU_FILE_INVALID_VALUE);
    OK(cuFileBufRegister(device, 1 * MIB, CU_FILE_RDMA_REGISTER | CU_FILE_RDMA_RELAXED_ORDERING));
    OK(cuFileBufDeregister(device));
    OK(cuFileBufRegister(device, 1 * MIB, 0x7700)); /* flags are not looked at */
    OK(cuFileBufDeregister(device));
    gpu_free(device);
    /* Managed memory can be read into, not registered. */
    CODE(cuFileBufRegister(gpu_alloc_managed(4096), 4096, 0), CU_FILE_CUDA_MEMORY_TYPE_INVALID);
}

static void all_kinds(CUfileHandle_t handle) {
    static unsigned char plain[256 * 1024];
    struct {
        const char *name;
        void *memory;
    } kinds[] = {
        {"device", gpu_alloc(256 * KIB)},       {"pool", gpu_alloc_pool(256 * KIB)},
        {"virtual", gpu_alloc_virtual(4 * MIB)}, {"pinned", gpu_alloc_host(256 * KIB)},
        {"host", plain},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        fprintf(stderr, "kind: %s\n", kinds[i].name);
        OK(cuFileBufRegister(kinds[i].memory, 256 * KIB, 0));
        EQ(cuFileRead(handle, kinds[i].memory, 256 * KIB, 0, 0), 256 * KIB);
        if (kinds[i].memory == (void *)plain)
            SAME(plain, 7, 0, 256 * KIB);
        else
            GPU_SAME(kinds[i].memory, 7, 0, 256 * KIB);
        OK(cuFileBufDeregister(kinds[i].memory));
    }
}

/* Frameworks pass pointers into a registered range; the range is what counts. */
static void inside(CUfileHandle_t handle) {
    char *device = gpu_alloc(1 * MIB);
    OK(cuFileBufRegister(device, 512 * KIB, 0));
    EQ(cuFileRead(handle, device + 100 * KIB, 64 * KIB, 10, 0), 64 * KIB);
    GPU_SAME(device + 100 * KIB, 7, 10, 64 * KIB);
    EQ(cuFileRead(handle, device, 64 * KIB, 20, 300 * KIB), 64 * KIB);
    GPU_SAME(device + 300 * KIB, 7, 20, 64 * KIB);
    /* From the registered base past the registered range. */
    MINUS_ONE(cuFileRead(handle, device, 64 * KIB, 0, 480 * KIB), CU_FILE_INVALID_MAPPING_RANGE);
    OK(cuFileBufDeregister(device));
    EQ(cuFileRead(handle, device, 64 * KIB, 0, 480 * KIB), 64 * KIB);
    GPU_SAME(device + 480 * KIB, 7, 0, 64 * KIB);
    gpu_free(device);
}

static uint64_t asked(void) {
    return ((uint64_t (*)(const char *))gpu_symbol("fake_cuda_calls"))("cuPointerGetAttributes");
}

/* Attributes of memory from its registration are not queried again until it is deregistered. */
static void known(CUfileHandle_t handle) {
    char *device = gpu_alloc(1 * MIB);
    OK(cuFileBufRegister(device, 1 * MIB, 0));
    EQ(cuFileRead(handle, device, 4096, 0, 0), 4096);
    uint64_t before = asked();
    for (int i = 0; i < 10; i++) EQ(cuFileRead(handle, device, 4096, 4096 * i, 64 * i), 4096);
    EQ(asked(), before);
    GPU_SAME(device + 64 * 9, 7, 4096 * 9, 4096);
    OK(cuFileBufDeregister(device));
    EQ(cuFileRead(handle, device, 4096, 0, 0), 4096);
    EQ(asked(), before + 1);
    OK(cuFileBufRegister(device, 1 * MIB, 0));
    gpu_free(device);
    EQ(cuFileRead(handle, device, 4096, 0, 0), -1);
    OK(cuFileBufDeregister(device));
}

/* The driver tells of all that is reserved, of which a part has no memory: a copy to there is refused, and does no harm. */
static void hole(CUfileHandle_t handle) {
    char *memory = gpu_map_halves(2 * MIB, 1);
    CHECK(cuFileRead(handle, memory + 2 * MIB - 64 * KIB, 128 * KIB, 0, 0) < 0);
    CHECK(cuFileRead(handle, memory + 2 * MIB, 64 * KIB, 0, 0) < 0);
    EQ(cuFileRead(handle, memory + 2 * MIB - 64 * KIB, 64 * KIB, 0, 0), 64 * KIB);
    GPU_SAME(memory + 2 * MIB - 64 * KIB, 7, 0, 64 * KIB);
}

/* 1000 registrations at once, and memory that was freed before it was deregistered. */
static void many(void) {
    char *device = gpu_alloc(4 * MIB);
    for (int i = 0; i < 1000; i++) OK(cuFileBufRegister(device + i * 4096, 4096, 0));
    for (int i = 999; i >= 0; i--) OK(cuFileBufDeregister(device + i * 4096));
    OK(cuFileBufRegister(device, 4 * MIB, 0));
    gpu_free(device);
    OK(cuFileBufDeregister(device));
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    gpu_start();
    rules();
    int fd = new_file(argv[1], "data", 7, 1 * MIB, 0);
    CUfileHandle_t handle = register_fd(fd);
    all_kinds(handle);
    inside(handle);
    known(handle);
    hole(handle);
    many();
    cuFileHandleDeregister(handle);
    return 0;
}
