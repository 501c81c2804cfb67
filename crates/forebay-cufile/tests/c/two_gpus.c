/* Memory of two GPUs, whichever context is current; both in one batch; statistics of each. */
#include "check.h"

static uint64_t contexts[2];

static char *alloc_on(int gpu, size_t len) {
    CU_OK(cuCtxSetCurrent, (uint64_t), contexts[gpu]);
    return gpu_alloc(len);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    gpu_start();
    for (int i = 0; i < 2; i++) CU_OK(cuDevicePrimaryCtxRetain, (uint64_t *, int), &contexts[i], i);
    char *memories[2] = {alloc_on(0, 2 * MIB), alloc_on(1, 2 * MIB)};
    int fd = new_file(argv[1], "data", 32, 2 * MIB, 0);
    CUfileHandle_t handle = register_fd(fd);
    OK(cuFileSetStatsLevel(3));
    OK(cuFileStatsStart());
    for (int current = 0; current < 2; current++) {
        CU_OK(cuCtxSetCurrent, (uint64_t), contexts[current]);
        for (int gpu = 0; gpu < 2; gpu++) {
            OK(cuFileBufRegister(memories[gpu], 2 * MIB, 0));
            EQ(cuFileRead(handle, memories[gpu], 4096, current + 1, 0), 4096);
            GPU_SAME(memories[gpu], 32, current + 1, 4096);
            EQ(cuFileRead(handle, memories[gpu], 2 * MIB, current, 0), 2 * MIB - current);
            GPU_SAME(memories[gpu], 32, current, 2 * MIB - (size_t)current);
            OK(cuFileBufDeregister(memories[gpu]));
        }
        uint64_t now;
        CU_OK(cuCtxGetCurrent, (uint64_t *), &now);
        CHECK(now == contexts[current]);
    }
    CUfileBatchHandle_t batch;
    OK(cuFileBatchIOSetUp(&batch, 32));
    CUfileIOParams_t params[32];
    memset(params, 0, sizeof params);
    for (int i = 0; i < 32; i++) {
        params[i].mode = CUFILE_BATCH;
        params[i].fh = handle;
        params[i].u.batch.devPtr_base = memories[i % 2];
        params[i].u.batch.devPtr_offset = i * 5000;
        params[i].u.batch.file_offset = i * 7001;
        params[i].u.batch.size = 5000;
    }
    OK(cuFileBatchIOSubmit(batch, 32, params, 0));
    CUfileIOEvents_t events[32];
    unsigned nr = 32;
    OK(cuFileBatchIOGetStatus(batch, 32, &nr, events, NULL));
    EQ(nr, 32);
    for (int i = 0; i < 32; i++) {
        EQ(events[i].status, CUFILE_COMPLETE);
        GPU_SAME(memories[i % 2] + i * 5000, 32, i * 7001, 5000);
    }
    cuFileBatchIODestroy(batch);
    static CUfileStatsLevel3_t stats;
    OK(cuFileGetStatsL3(&stats));
    EQ(stats.num_gpus, 2);
    for (int gpu = 0; gpu < 2; gpu++) {
        CHECK(stats.per_gpu_stats[gpu].n_total_reads >= 4);
        CHECK(stats.per_gpu_stats[gpu].read_bytes >= 4 * MIB);
        EQ(stats.per_gpu_stats[gpu].uuid[15], '0' + gpu);
    }
    return 0;
}
