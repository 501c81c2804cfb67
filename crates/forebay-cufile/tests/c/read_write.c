/* Every kind of memory, both directions, every alignment of file, memory and size, with O_DIRECT and without. */
#include "check.h"

#define SIZE (5 * MIB + 777)

struct Memory {
    const char *name;
    void *base;
    int gpu; /* the CPU cannot touch it */
};

static void put(struct Memory memory, size_t at, uint64_t key, uint64_t from, size_t len) {
    if (memory.gpu)
        gpu_fill((char *)memory.base + at, key, from, len);
    else
        fill((unsigned char *)memory.base + at, key, from, len);
}

static void has(struct Memory memory, size_t at, uint64_t key, uint64_t from, size_t len) {
    if (memory.gpu)
        GPU_SAME((char *)memory.base + at, key, from, len);
    else
        SAME((unsigned char *)memory.base + at, key, from, len);
}

static const struct {
    size_t len;
    off_t file, memory;
} CASES[] = {
    {1, 0, 0},         {1, 4095, 1},        {4096, 0, 0},         {4096, 4096, 4096},     {4096, 1, 0},
    {4096, 0, 1},      {4097, 4096, 0},     {511, 513, 7},        {65536, 65536, 65536},  {65536, 3, 5},
    {1048576, 0, 0},   {1048576, 512, 512}, {1048577, 4096, 1},   {3000001, 99999, 12345}, {4194304, 4096, 0},
};
#define COUNT (sizeof CASES / sizeof *CASES)

static void reads(CUfileHandle_t handle, struct Memory memory) {
    for (size_t i = 0; i < COUNT; i++) {
        /* A byte before and behind must stay what it was. */
        put(memory, CASES[i].memory, 99, 0, CASES[i].len + 64);
        EQ(cuFileRead(handle, memory.base, CASES[i].len, CASES[i].file, CASES[i].memory), CASES[i].len);
        has(memory, CASES[i].memory, 8, CASES[i].file, CASES[i].len);
        has(memory, CASES[i].memory + CASES[i].len, 99, CASES[i].len, 64);
    }
}

static void writes(CUfileHandle_t handle, int fd, struct Memory memory) {
    for (size_t i = 0; i < COUNT; i++) {
        put(memory, CASES[i].memory, 50 + i, 0, CASES[i].len);
        EQ(cuFileWrite(handle, memory.base, CASES[i].len, CASES[i].file, CASES[i].memory), CASES[i].len);
        file_has(fd, 50 + i, 0, CASES[i].file, CASES[i].len);
        /* What surrounds it is as it was; then the file is made good again. */
        if (CASES[i].file > 0) file_has(fd, 8, 0, 0, CASES[i].file < 4096 ? (size_t)CASES[i].file : 4096);
        file_has(fd, 8, CASES[i].file + CASES[i].len, CASES[i].file + CASES[i].len, 5000);
        put(memory, CASES[i].memory, 8, CASES[i].file, CASES[i].len);
        EQ(cuFileWrite(handle, memory.base, CASES[i].len, CASES[i].file, CASES[i].memory), CASES[i].len);
    }
    file_has(fd, 8, 0, 0, SIZE);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    gpu_start();
    size_t room = SIZE + 1 * MIB;
    struct Memory memories[] = {
        {"device", gpu_alloc(room), 1},          {"managed", gpu_alloc_managed(room), 0},
        {"pool", gpu_alloc_pool(room), 1},       {"virtual", gpu_alloc_virtual(room), 1},
        {"pinned", gpu_alloc_host(room), 0},     {"host", malloc(room), 0},
    };
    int flags[] = {0, O_DIRECT};
    for (int f = 0; f < 2; f++) {
        int fd = new_file(argv[1], "data", 8, SIZE, flags[f]);
        if (fd < 0) {
            printf("skipped: no O_DIRECT in %s\n", argv[1]);
            continue;
        }
        CUfileHandle_t handle = register_fd(fd);
        for (size_t m = 0; m < sizeof memories / sizeof *memories; m++) {
            fprintf(stderr, "flags %#x, %s memory\n", (unsigned)flags[f], memories[m].name);
            reads(handle, memories[m]);
            writes(handle, fd, memories[m]);
        }
        cuFileHandleDeregister(handle);
        close(fd);
    }
    return 0;
}
