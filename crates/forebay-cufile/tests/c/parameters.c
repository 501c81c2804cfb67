/* Parameters: set while closed, exact round trips, running values, ranges; properties and their setters. */
#include "check.h"

static void defaults(void) {
    EQ(size_of(CUFILE_PARAM_PROFILE_STATS), 0);
    EQ(size_of(CUFILE_PARAM_EXECUTION_MAX_IO_QUEUE_DEPTH), 128);
    EQ(size_of(CUFILE_PARAM_EXECUTION_MAX_IO_THREADS), 4);
    EQ(size_of(CUFILE_PARAM_EXECUTION_MIN_IO_THRESHOLD_SIZE_KB), 8192);
    EQ(size_of(CUFILE_PARAM_EXECUTION_MAX_REQUEST_PARALLELISM), 4);
    EQ(size_of(CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB), 131072);
    EQ(size_of(CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB), 1024);
    EQ(size_of(CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB), 33554432);
    EQ(size_of(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE), 128);
    EQ(size_of(CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB), 4);
    EQ(size_of(CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS), 5);
    for (int i = 0; i <= CUFILE_PARAM_STREAM_MEMOPS_BYPASS; i++) {
        bool wanted = i == CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE || i == CUFILE_PARAM_EXECUTION_PARALLEL_IO ||
                      i == CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY;
        EQ(bool_of((CUFileBoolConfigParameter_t)i), wanted);
    }
}

static void round_trips(void) {
    struct {
        CUFileSizeTConfigParameter_t param;
        size_t value;
    } sizes[] = {
        {CUFILE_PARAM_PROFILE_STATS, 3},
        {CUFILE_PARAM_EXECUTION_MAX_IO_QUEUE_DEPTH, 64},
        {CUFILE_PARAM_EXECUTION_MAX_IO_THREADS, 2},
        {CUFILE_PARAM_EXECUTION_MIN_IO_THRESHOLD_SIZE_KB, 2048},
        {CUFILE_PARAM_EXECUTION_MAX_REQUEST_PARALLELISM, 2},
        {CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB, 1024},
        {CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB, 512},
        {CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB, 128},
        {CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB, 2048},
        {CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, 96},
        {CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB, 16},
        {CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS, 20},
    };
    enum { COUNT = sizeof sizes / sizeof *sizes };
    for (int i = 0; i < COUNT; i++) {
        OK(cuFileSetParameterSizeT(sizes[i].param, sizes[i].value + 1 - (i == 0)));
        OK(cuFileSetParameterSizeT(sizes[i].param, sizes[i].value)); /* the last one counts */
    }
    for (int i = 0; i < COUNT; i++) EQ(size_of(sizes[i].param), sizes[i].value);
    for (int i = 0; i <= CUFILE_PARAM_STREAM_MEMOPS_BYPASS; i++) {
        CUFileBoolConfigParameter_t param = (CUFileBoolConfigParameter_t)i;
        bool was = bool_of(param);
        OK(cuFileSetParameterBool(param, !was));
        EQ(bool_of(param), !was);
        OK(cuFileSetParameterBool(param, was));
        EQ(bool_of(param), was);
    }
    char text[64];
    OK(cuFileSetParameterString(CUFILE_PARAM_LOGGING_LEVEL, "INFO"));
    OK(cuFileGetParameterString(CUFILE_PARAM_LOGGING_LEVEL, text, sizeof text));
    CHECK(strcmp(text, "INFO") == 0);
    OK(cuFileGetParameterString(CUFILE_PARAM_LOGGING_LEVEL, text, 5)); /* the text and its end */
    CODE(cuFileGetParameterString(CUFILE_PARAM_LOGGING_LEVEL, text, 4), CU_FILE_INVALID_VALUE);
    OK(cuFileSetParameterString(CUFILE_PARAM_LOGGING_LEVEL, "ERROR"));
    OK(cuFileSetParameterString(CUFILE_PARAM_LOG_DIR, "/tmp"));
    OK(cuFileGetParameterString(CUFILE_PARAM_LOG_DIR, text, sizeof text));
    CHECK(strcmp(text, "/tmp") == 0);
    CODE(cuFileGetParameterString(CUFILE_PARAM_ENV_LOGFILE_PATH, text, sizeof text), CU_FILE_INVALID_VALUE);
    size_t slabs[3] = {4, 1024, 16384}, counts[3] = {16, 8, 4}, found[3], found_counts[3];
    OK(cuFileSetParameterPosixPoolSlabArray(slabs, counts, 3));
    OK(cuFileGetParameterPosixPoolSlabArray(found, found_counts, 3));
    for (int i = 0; i < 3; i++) {
        EQ(found[i], slabs[i]);
        EQ(found_counts[i], counts[i]);
    }
    CODE(cuFileSetParameterPosixPoolSlabArray(NULL, counts, 3), CU_FILE_INVALID_VALUE);
    CODE(cuFileGetParameterPosixPoolSlabArray(found, found_counts, 0), CU_FILE_INVALID_VALUE);
    /* Opening uses the parameters set before; while it is open none can be set. */
    OK(cuFileDriverOpen());
    for (int i = 0; i < COUNT; i++) EQ(size_of(sizes[i].param), sizes[i].value);
    CODE(cuFileSetParameterSizeT(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, 64), CU_FILE_DRIVER_ALREADY_OPEN);
    CODE(cuFileSetParameterBool(CUFILE_PARAM_PROPERTIES_USE_POLL_MODE, true), CU_FILE_DRIVER_ALREADY_OPEN);
    CODE(cuFileSetParameterString(CUFILE_PARAM_LOGGING_LEVEL, "INFO"), CU_FILE_DRIVER_ALREADY_OPEN);
    CODE(cuFileSetParameterPosixPoolSlabArray(slabs, counts, 3), CU_FILE_DRIVER_ALREADY_OPEN);
    int level = 0;
    OK(cuFileGetStatsLevel(&level));
    EQ(level, 3);
    OK(cuFileDriverClose());
    /* The staged parameters ended with that opening. */
    EQ(size_of(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE), 128);
    OK(cuFileDriverOpen());
    EQ(size_of(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE), 128);
    OK(cuFileDriverClose());
}

static void ranges(void) {
    size_t min, max;
    size_t least[] = {0, 1, 0, 4, 0, 64, 0, 64, 64, 1, 4, 1};
    /* 0: no limit. Those of the batch size and its timeout are our own: higher than elsewhere. */
    size_t greatest[] = {0, 256, 32, 4294967295, 8, 16384, 0, 16384, 0, 1 << 20, 18014398509481980, 3600000};
    for (int i = 1; i < 12; i++) {
        CUFileSizeTConfigParameter_t param = (CUFileSizeTConfigParameter_t)i;
        OK(cuFileGetParameterMinMaxValue(param, &min, &max));
        EQ(min, least[i]);
        EQ(max, greatest[i]);
        OK(cuFileSetParameterSizeT(param, min));
        EQ(size_of(param), min);
        if (min > 0) CODE(cuFileSetParameterSizeT(param, min - 1), CU_FILE_INVALID_VALUE);
        if (max > 0) CODE(cuFileSetParameterSizeT(param, max + 1), CU_FILE_INVALID_VALUE);
    }
    CODE(cuFileGetParameterMinMaxValue(CUFILE_PARAM_PROFILE_STATS, &min, &max), CU_FILE_INVALID_VALUE);
    CODE(cuFileGetParameterMinMaxValue(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, NULL, &max), CU_FILE_INVALID_VALUE);
    OK(cuFileGetParameterMinMaxValue(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, &min, &max));
    CODE(cuFileSetParameterSizeT(CUFILE_PARAM_PROFILE_STATS, 4), CU_FILE_INVALID_VALUE);
    CODE(cuFileSetParameterSizeT((CUFileSizeTConfigParameter_t)77, 1), CU_FILE_INVALID_VALUE);
    CODE(cuFileGetParameterSizeT((CUFileSizeTConfigParameter_t)77, &min), CU_FILE_INVALID_VALUE);
    CODE(cuFileGetParameterSizeT(CUFILE_PARAM_PROFILE_STATS, NULL), CU_FILE_INVALID_VALUE);
    bool flag;
    CODE(cuFileGetParameterBool((CUFileBoolConfigParameter_t)77, &flag), CU_FILE_INVALID_VALUE);
    CODE(cuFileGetParameterBool(CUFILE_PARAM_FORCE_COMPAT_MODE, NULL), CU_FILE_INVALID_VALUE);
    CODE(cuFileSetParameterString(CUFILE_PARAM_LOGGING_LEVEL, NULL), CU_FILE_INVALID_VALUE);
    CODE(cuFileSetParameterString((CUFileStringConfigParameter_t)77, "x"), CU_FILE_INVALID_VALUE);
    CODE(cuFileGetParameterString(CUFILE_PARAM_LOG_DIR, NULL, 100), CU_FILE_INVALID_VALUE);
    /* Forget the minima. */
    OK(cuFileDriverOpen());
    OK(cuFileDriverClose());
}

static void properties(int open) {
    CUfileDrvProps_t props;
    CODE(cuFileDriverGetProperties(NULL), CU_FILE_INVALID_VALUE);
    OK(cuFileDriverGetProperties(&props));
    EQ(props.nvfs.major_version, 0);
    EQ(props.nvfs.minor_version, 0);
    EQ(props.nvfs.dstatusflags, 0);
    EQ(props.nvfs.dcontrolflags, 1 << CU_FILE_ALLOW_COMPAT_MODE);
    EQ(props.fflags, 0xF);
    EQ(props.max_device_cache_size, 131072);
    EQ(props.max_device_pinned_mem_size, 33554432);
    EQ(props.max_batch_io_size, 128);
    EQ(props.max_batch_io_timeout_msecs, 5);
    OK(cuFileDriverSetMaxDirectIOSize(4096));
    OK(cuFileDriverSetMaxCacheSize(65536));
    OK(cuFileDriverSetMaxPinnedMemSize(1048576));
    OK(cuFileDriverSetPollMode(true, 8));
    OK(cuFileDriverGetProperties(&props));
    EQ(props.nvfs.max_direct_io_size, 4096);
    EQ(props.max_device_cache_size, 65536);
    EQ(props.max_device_pinned_mem_size, 1048576);
    EQ(props.nvfs.poll_thresh_size, 8);
    EQ(props.nvfs.dcontrolflags, (1 << CU_FILE_ALLOW_COMPAT_MODE) | (1 << CU_FILE_USE_POLL_MODE));
    OK(cuFileDriverSetPollMode(false, 4));
    OK(cuFileDriverGetProperties(&props));
    EQ(props.nvfs.dcontrolflags, 1 << CU_FILE_ALLOW_COMPAT_MODE);
    EQ(cuFileUseCount(), open); /* none of this opened it */
    OK(cuFileDriverSetMaxCacheSize(131072));
    OK(cuFileDriverSetMaxPinnedMemSize(33554432));
}

static void versions(void) {
    int version = 0;
    OK(cuFileGetVersion(&version));
    EQ(version, 1150);
    CODE(cuFileGetVersion(NULL), CU_FILE_INVALID_VALUE);
    size_t bar = 0;
    CODE(cuFileGetBARSizeInKB(0, NULL), CU_FILE_INVALID_VALUE);
    CODE(cuFileGetBARSizeInKB(-1, &bar), CU_FILE_INVALID_VALUE);
    CODE(cuFileGetBARSizeInKB(64, &bar), CU_FILE_INVALID_VALUE);
    OK(cuFileGetBARSizeInKB(0, &bar)); /* the software GPU has no window: what it is can be any */
}

/* Functions of later versions that are here as well. */
static void later(const char *folder) {
    EQ(cuFileUseCount(), 0);
    size_t sizes[2] = {1024, 8192}, counts[2] = {16, 4}, found[2], found_counts[2];
    OK(cuFileSetParameterGpuBounceBufferSlabArray(sizes, counts, 2));
    OK(cuFileGetParameterGpuBounceBufferSlabArray(found, found_counts, 2));
    EQ(found[1], 8192);
    EQ(found_counts[0], 16);
    CUfileP2PFlags_t flags;
    OK(cuFileDriverGetP2PFlags(CU_FILE_NVME_SUPPORTED, &flags));
    CODE(cuFileDriverGetP2PFlags(CU_FILE_NVME_SUPPORTED, NULL), CU_FILE_INVALID_VALUE);
    const char *path = path_in(folder, "topology.json");
    OK(cuFileExportPCIeTopology(path));
    struct stat status;
    EQ(stat(path, &status), 0);
    CHECK(status.st_size > 2);
    CODE(cuFileExportPCIeTopology(NULL), CU_FILE_INVALID_VALUE);
    CHECK(cuFileExportPCIeTopology("/nonexistent/folder/file").err != CU_FILE_SUCCESS);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    defaults();
    round_trips();
    ranges();
    properties(0);
    OK(cuFileDriverOpen());
    properties(1);
    OK(cuFileDriverClose());
    later(argv[1]);
    versions();
    return 0;
}
