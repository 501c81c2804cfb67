/* Statistics: levels, counters, and that the structs end where 1.15's end. */
#include "check.h"

#define GUARD 0x5A

struct Guarded {
    CUfileStatsLevel3_t stats;
    unsigned char behind[256];
};

static struct Guarded found;

static void guarded(size_t size, CUfileError_t (*get)(void)) {
    memset(&found, GUARD, sizeof found);
    OK(get());
    for (size_t i = size; i < sizeof found; i++) EQ(((unsigned char *)&found)[i], GUARD);
}

static CUfileError_t level1(void) { return cuFileGetStatsL1((CUfileStatsLevel1_t *)&found); }
static CUfileError_t level2(void) { return cuFileGetStatsL2((CUfileStatsLevel2_t *)&found); }
static CUfileError_t level3(void) { return cuFileGetStatsL3(&found.stats); }

static void closed(void) {
    CUfileStatsLevel1_t one;
    CODE(cuFileStatsStart(), CU_FILE_DRIVER_NOT_INITIALIZED);
    CODE(cuFileStatsStop(), CU_FILE_DRIVER_NOT_INITIALIZED);
    CODE(cuFileStatsReset(), CU_FILE_DRIVER_NOT_INITIALIZED);
    CODE(cuFileGetStatsL1(&one), CU_FILE_DRIVER_NOT_INITIALIZED);
    CODE(cuFileSetStatsLevel(-1), CU_FILE_INVALID_VALUE);
    CODE(cuFileSetStatsLevel(4), CU_FILE_INVALID_VALUE);
    CODE(cuFileGetStatsLevel(NULL), CU_FILE_INVALID_VALUE);
}

static void levels(void) {
    int level = 99;
    OK(cuFileGetStatsLevel(&level));
    EQ(level, 0);
    CODE(level1(), CU_FILE_INVALID_VALUE);
    OK(cuFileSetStatsLevel(1));
    OK(level1());
    CODE(level2(), CU_FILE_INVALID_VALUE);
    OK(cuFileSetStatsLevel(2));
    OK(level2());
    CODE(level3(), CU_FILE_INVALID_VALUE);
    OK(cuFileSetStatsLevel(3));
    OK(cuFileGetStatsLevel(&level));
    EQ(level, 3);
    CODE(cuFileGetStatsL1(NULL), CU_FILE_INVALID_VALUE);
    CODE(cuFileGetStatsL3(NULL), CU_FILE_INVALID_VALUE);
    guarded(512, level1);
    guarded(1024, level2);
    guarded(5000, level3);
}

static void counted(const char *folder, char *device) {
    OK(cuFileStatsStart());
    OK(cuFileStatsReset());
    OK(level1());
    EQ(found.stats.detailed.basic.read_ops.ok, 0);
    int fd = new_file(folder, "data", 22, 1 * MIB, 0);
    CUfileHandle_t handle = register_fd(fd), none;
    CHECK(try_register(&none, -1).err != CU_FILE_SUCCESS);
    OK(cuFileBufRegister(device, 1 * MIB, 0));
    for (int i = 0; i < 10; i++) EQ(cuFileRead(handle, device, 10000, i, 0), 10000);
    for (int i = 0; i < 3; i++) EQ(cuFileWrite(handle, device, 2000, i, 0), 2000);
    EQ(cuFileRead(handle, device, 100, -1, 0), -1);
    OK(cuFileBufDeregister(device));
    CUfileBatchHandle_t batch;
    OK(cuFileBatchIOSetUp(&batch, 4));
    CUfileIOParams_t params[4];
    memset(params, 0, sizeof params);
    for (int i = 0; i < 4; i++) {
        params[i].mode = CUFILE_BATCH;
        params[i].fh = handle;
        params[i].u.batch.devPtr_base = device;
        params[i].u.batch.devPtr_offset = i * 4096;
        params[i].u.batch.size = 4096;
    }
    OK(cuFileBatchIOSubmit(batch, 4, params, 0));
    CUfileIOEvents_t events[4];
    unsigned nr = 4;
    OK(cuFileBatchIOGetStatus(batch, 4, &nr, events, NULL));
    cuFileBatchIODestroy(batch);
    cuFileHandleDeregister(handle);
    guarded(5000, level3);
    CUfileStatsLevel1_t *basic = &found.stats.detailed.basic;
    EQ(basic->read_ops.ok, 10);
    EQ(basic->read_ops.err, 1);
    EQ(basic->write_ops.ok, 3);
    EQ(basic->write_ops.err, 0);
    EQ(basic->read_bytes, 100000);
    EQ(basic->write_bytes, 6000);
    EQ(basic->hdl_register_ops.ok, 1);
    EQ(basic->hdl_register_ops.err, 1);
    EQ(basic->hdl_deregister_ops.ok, 1);
    EQ(basic->buf_register_ops.ok, 1);
    EQ(basic->buf_deregister_ops.ok, 1);
    EQ(basic->batch_setup_ops.ok, 1);
    EQ(basic->batch_submit_ops.ok, 1);
    EQ(basic->batch_destroy_ops.ok, 1);
    EQ(basic->batch_enqueued_ops.ok, 4);
    EQ(basic->batch_read_bytes, 4 * 4096);
    /* 10000 bytes lie in the bucket of 8 to 16 KiB, 2000 in that below 4 KiB. */
    uint64_t reads = 0, writes = 0;
    for (int i = 0; i < 32; i++) {
        reads += found.stats.detailed.read_size_kb_hist[i];
        writes += found.stats.detailed.write_size_kb_hist[i];
    }
    CHECK(reads >= 10 && writes == 3);
    EQ(found.stats.detailed.read_size_kb_hist[2], 10);
    EQ(found.stats.detailed.write_size_kb_hist[0], 3);
    EQ(found.stats.num_gpus, 1);
    CHECK(found.stats.per_gpu_stats[0].n_total_reads >= 10);
    EQ(found.stats.per_gpu_stats[0].n_total_writes, 3);
    CHECK(memcmp(found.stats.per_gpu_stats[0].uuid, "fake-cuda-gpu-00", 16) == 0);
    close(fd);
}

/* Stopping holds the counters; starting again works. */
static void stopped(const char *folder, char *device) {
    int fd = new_file(folder, "stopped", 22, 4096, 0);
    CUfileHandle_t handle = register_fd(fd);
    OK(cuFileStatsReset());
    OK(cuFileStatsStop());
    EQ(cuFileRead(handle, device, 100, 0, 0), 100);
    OK(level1());
    EQ(found.stats.detailed.basic.read_ops.ok, 0);
    OK(cuFileStatsStart());
    EQ(cuFileRead(handle, device, 100, 0, 0), 100);
    OK(level1());
    EQ(found.stats.detailed.basic.read_ops.ok, 1);
    cuFileHandleDeregister(handle);
    close(fd);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    gpu_start();
    closed();
    OK(cuFileDriverOpen());
    levels();
    char *device = gpu_alloc(1 * MIB);
    counted(argv[1], device);
    stopped(argv[1], device);
    return 0;
}
