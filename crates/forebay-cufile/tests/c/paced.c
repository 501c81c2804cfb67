/* A program with gaps between its calls, for its trace: reads, writes, batches and a stream, each on a thread of its own. */
#include "check.h"

enum { ROUNDS = 24, ENTRIES = 8 };
#define PIECE (64 * KIB)

static CUfileHandle_t data, out;

static void nap(long ms) { usleep((useconds_t)ms * 1000); }

static void *reads(void *unused) {
    (void)unused;
    gpu_start();
    char *device = gpu_alloc(PIECE);
    for (int i = 0; i < 2 * ROUNDS; i++, nap(25)) EQ(cuFileRead(data, device, PIECE, i * 3 * (off_t)PIECE / 2, 0), PIECE);
    /* The last one finds the end of the file. */
    EQ(cuFileRead(data, device, PIECE, 8 * MIB - 100, 0), 100);
    return NULL;
}

static void *writes(void *unused) {
    (void)unused;
    char *host = (char *)new_bytes(41, 0, 2 * PIECE);
    for (int i = 0; i < ROUNDS; i++, nap(45)) EQ(cuFileWrite(out, host, 2 * PIECE - 17, i * 2 * (off_t)PIECE, 0), 2 * PIECE - 17);
    return NULL;
}

static void *batches(void *unused) {
    (void)unused;
    gpu_start();
    char *device = gpu_alloc(ENTRIES * PIECE);
    CUfileBatchHandle_t batch;
    OK(cuFileBatchIOSetUp(&batch, ENTRIES));
    for (int round = 0; round < ROUNDS; round++, nap(45)) {
        CUfileIOParams_t entries[ENTRIES];
        CUfileIOEvents_t events[ENTRIES];
        memset(entries, 0, sizeof entries);
        for (int i = 0; i < ENTRIES; i++) {
            entries[i].mode = CUFILE_BATCH;
            entries[i].fh = data;
            entries[i].opcode = CUFILE_READ;
            entries[i].u.batch.devPtr_base = device;
            entries[i].u.batch.devPtr_offset = i * (off_t)PIECE;
            entries[i].u.batch.file_offset = (round + i) * (off_t)PIECE;
            entries[i].u.batch.size = PIECE;
        }
        OK(cuFileBatchIOSubmit(batch, ENTRIES, entries, 0));
        for (unsigned left = ENTRIES; left > 0;) {
            unsigned count = left;
            OK(cuFileBatchIOGetStatus(batch, 1, &count, events, NULL));
            left -= count;
        }
    }
    cuFileBatchIODestroy(batch);
    return NULL;
}

static void *streams(void *unused) {
    (void)unused;
    gpu_start();
    char *device = gpu_alloc(PIECE);
    CUstream stream = gpu_stream(1);
    OK(cuFileStreamRegister(stream, 0));
    for (int round = 0; round < ROUNDS; round++, nap(45)) {
        size_t size = PIECE;
        off_t offset = round * (off_t)PIECE, memory = 0;
        ssize_t done = 0;
        OK(cuFileReadAsync(data, device, &size, &offset, &memory, &done, stream));
        gpu_wait(stream);
        EQ(done, PIECE);
    }
    OK(cuFileStreamDeregister(stream));
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    gpu_start();
    data = register_fd(new_file(argv[1], "data", 40, 8 * MIB, 0));
    out = register_fd(new_file(argv[1], "out", 41, 100, 0));
    void *(*all[])(void *) = {reads, writes, batches, streams};
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) EQ(pthread_create(&threads[i], NULL, all[i], NULL), 0);
    for (int i = 0; i < 4; i++) EQ(pthread_join(threads[i], NULL), 0);
    cuFileHandleDeregister(data);
    cuFileHandleDeregister(out);
    OK(cuFileDriverClose());
    return 0;
}
