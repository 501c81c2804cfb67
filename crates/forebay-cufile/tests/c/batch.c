/* Batches: every entry has its own result; a batch is used again and again; a limit that is set holds. */
#include "check.h"

#define ENTRIES 128
#define PIECE 5000

static int fd;
static CUfileHandle_t handle;

static CUfileIOParams_t entry(void *memory, off_t memory_offset, off_t file_offset, size_t size, CUfileOpcode_t opcode) {
    static intptr_t cookie;
    CUfileIOParams_t params = batch_entry(handle, opcode, memory, size, file_offset);
    params.u.batch.devPtr_offset = memory_offset;
    params.cookie = (void *)++cookie;
    return params;
}

/* Takes events until `count` came, by parts of up to `at_once`; each of `params` must complete with its size. */
static void all_complete(CUfileBatchHandle_t batch, CUfileIOParams_t *params, unsigned count, unsigned at_once) {
    char *seen = calloc(count, 1);
    CUfileIOEvents_t *events = calloc(at_once, sizeof *events);
    for (unsigned done = 0; done < count;) {
        unsigned nr = at_once;
        OK(cuFileBatchIOGetStatus(batch, 1, &nr, events, NULL));
        CHECK(nr >= 1 && nr <= at_once && nr <= count - done);
        for (unsigned i = 0; i < nr; i++) {
            unsigned which = 0;
            while (which < count && params[which].cookie != events[i].cookie) which++;
            CHECK(which < count && !seen[which]);
            seen[which] = 1;
            EQ(events[i].status, CUFILE_COMPLETE);
            EQ(events[i].ret, params[which].u.batch.size);
        }
        done += nr;
    }
    /* Nothing comes twice. */
    unsigned nr = at_once;
    OK(cuFileBatchIOGetStatus(batch, 0, &nr, events, NULL));
    EQ(nr, 0);
    free(events);
    free(seen);
}

static void reads_and_writes(char *device, unsigned char *host) {
    CUfileBatchHandle_t batch;
    OK(cuFileBatchIOSetUp(&batch, ENTRIES));
    CUfileIOParams_t params[ENTRIES];
    for (int round = 0; round < 5; round++) {
        gpu_zero(device, ENTRIES * PIECE);
        for (int i = 0; i < ENTRIES; i++) {
            void *memory = i % 3 ? (void *)device : (void *)host;
            params[i] = entry(memory, i * PIECE, (off_t)(ENTRIES - i) * 6000 + round, PIECE - i, CUFILE_READ);
        }
        OK(cuFileBatchIOSubmit(batch, ENTRIES, params, 0));
        all_complete(batch, params, ENTRIES, round % 2 ? ENTRIES : 16);
        for (int i = 0; i < ENTRIES; i++) {
            if (i % 3)
                GPU_SAME(device + i * PIECE, 13, (ENTRIES - i) * 6000 + round, (size_t)(PIECE - i));
            else
                SAME(host + i * PIECE, 13, (ENTRIES - i) * 6000 + round, PIECE - i);
        }
    }
    /* Both directions in one batch. */
    for (int i = 0; i < 64; i++) {
        int writes = i % 2;
        if (writes) gpu_fill(device + i * PIECE, 14, i * 6000, PIECE);
        params[i] = entry(device, i * PIECE, (off_t)i * 6000, PIECE, writes ? CUFILE_WRITE : CUFILE_READ);
    }
    OK(cuFileBatchIOSubmit(batch, 64, params, 0));
    all_complete(batch, params, 64, 64);
    for (int i = 0; i < 64; i++) {
        GPU_SAME(device + i * PIECE, i % 2 ? 14 : 13, i * 6000, PIECE);
        file_has(fd, i % 2 ? 14 : 13, i * 6000, i * 6000, PIECE);
    }
    /* Entry by entry, many times over, without taking the events at once. */
    for (int i = 0; i < ENTRIES; i++) {
        params[i] = entry(device, i * PIECE, 800000, 1000, CUFILE_READ);
        OK(cuFileBatchIOSubmit(batch, 1, &params[i], 0));
    }
    all_complete(batch, params, ENTRIES, ENTRIES);
    cuFileBatchIODestroy(batch);
}

/* A failing entry does not touch its neighbours. */
static void each_its_own(char *device) {
    CUfileBatchHandle_t batch;
    OK(cuFileBatchIOSetUp(&batch, 8));
    CUfileIOParams_t params[5] = {
        entry(device, 0, 900000, 4096, CUFILE_READ),
        entry(device, 8192, 1000, 4096, (CUfileOpcode_t)9),  /* no such operation */
        entry(device, 16384, 2000000, 4096, CUFILE_READ),    /* behind the end */
        entry(device, 24576, 999000, 4096, CUFILE_READ),     /* across the end */
        entry(device, 32768, 700000, 4096, CUFILE_READ),
    };
    params[4].cookie = NULL;
    OK(cuFileBatchIOSubmit(batch, 5, params, 0));
    CUfileIOEvents_t events[8];
    unsigned nr = 8;
    OK(cuFileBatchIOGetStatus(batch, 5, &nr, events, NULL));
    EQ(nr, 5);
    for (unsigned i = 0; i < nr; i++) {
        if (events[i].cookie == params[0].cookie || events[i].cookie == NULL) {
            EQ(events[i].status, CUFILE_COMPLETE);
            EQ(events[i].ret, 4096);
        } else if (events[i].cookie == params[1].cookie) {
            EQ(events[i].status, CUFILE_FAILED);
            EQ((ssize_t)events[i].ret, -EINVAL);
        } else if (events[i].cookie == params[2].cookie) {
            EQ(events[i].status, CUFILE_COMPLETE);
            EQ(events[i].ret, 0);
        } else {
            CHECK(events[i].cookie == params[3].cookie);
            EQ(events[i].status, CUFILE_COMPLETE);
            EQ(events[i].ret, 1000);
        }
    }
    GPU_SAME(device, 13, 900000, 4096);
    GPU_SAME(device + 24576, 13, 999000, 1000);
    GPU_SAME(device + 32768, 13, 700000, 4096);
    cuFileBatchIODestroy(batch);
}

/* Sixteen batches at once, as pools of them are used. */
static void several(char *device) {
    CUfileBatchHandle_t batches[16];
    static CUfileIOParams_t params[16][8];
    for (int b = 0; b < 16; b++) OK(cuFileBatchIOSetUp(&batches[b], 8));
    for (int b = 0; b < 16; b++) {
        for (int i = 0; i < 8; i++) params[b][i] = entry(device, (b * 8 + i) * 4096, 500000 + b * 97 + i, 4096, CUFILE_READ);
        OK(cuFileBatchIOSubmit(batches[b], 8, params[b], 0));
    }
    for (int b = 15; b >= 0; b--) {
        all_complete(batches[b], params[b], 8, 8);
        for (int i = 0; i < 8; i++) GPU_SAME(device + (b * 8 + i) * 4096, 13, 500000 + b * 97 + i, 4096);
        cuFileBatchIODestroy(batches[b]);
    }
}

/* The limit is a parameter, and not capped at 256. */
static void large(char *device) {
    enum { MANY = 3000 };
    static CUfileIOParams_t params[MANY];
    cuFileHandleDeregister(handle);
    while (cuFileUseCount() > 0) OK(cuFileDriverClose());
    OK(cuFileSetParameterSizeT(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, MANY));
    handle = register_fd(fd);
    CUfileBatchHandle_t batch;
    CODE(cuFileBatchIOSetUp(&batch, MANY + 1), CU_FILE_INVALID_VALUE);
    OK(cuFileBatchIOSetUp(&batch, MANY));
    for (int i = 0; i < MANY; i++) params[i] = entry(device, i * 200, 400000 + i * 7, 200, CUFILE_READ);
    OK(cuFileBatchIOSubmit(batch, MANY, params, 0));
    all_complete(batch, params, MANY, MANY);
    for (int i = 0; i < MANY; i++) GPU_SAME(device + i * 200, 13, 400000 + i * 7, 200);
    cuFileBatchIODestroy(batch);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    gpu_start();
    fd = new_file(argv[1], "data", 13, 1000000, 0);
    handle = register_fd(fd);
    char *device = gpu_alloc(1 * MIB);
    unsigned char *host = malloc(1 * MIB);
    reads_and_writes(device, host);
    each_its_own(device);
    several(device);
    large(device);
    return 0;
}
