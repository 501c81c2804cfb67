// What small batches cost without an engine: N threads, each with K random pieces of 4 KiB of a cached file at a time.
//   nvcc -O3 -arch=sm_90 -o batch_floor bench/batch_floor.cu -lpthread
//   ./batch_floor FILE [THREADS [PIECES [SECONDS]]]
// Ways, each with the preads of a batch into pinned memory:
//   pread     nothing else: what the page cache gives
//   own fd    the same with a descriptor of its own for each thread
//   driver    one cudaMemcpyAsync a batch, waited for by cudaStreamSynchronize
//   resident  a block of a kernel that stays on the GPU polls the thread's mailbox and copies; the thread polls for its answer
#include <cuda_runtime.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

static const size_t PIECE = 4096;

static void must_(cudaError_t code, int line) {
    if (code != cudaSuccess) {
        printf("line %d: %s\n", line, cudaGetErrorString(code));
        exit(1);
    }
}
#define must(call) must_(call, __LINE__)

// One cache line for each direction: neither side writes what the other one polls.
struct Mailbox {
    alignas(128) volatile uint32_t posted;
    volatile uint32_t bytes;
    alignas(128) volatile uint32_t done;
};

static const uint32_t END = ~0u;

// A thread of the block polls: nothing else crosses the link until something is posted.
__global__ void resident(Mailbox *boxes, const char *slots, char *targets, size_t room) {
    Mailbox *box = &boxes[blockIdx.x];
    const int4 *from = reinterpret_cast<const int4 *>(slots + blockIdx.x * room);
    int4 *to = reinterpret_cast<int4 *>(targets + blockIdx.x * room);
    __shared__ uint32_t posted, bytes;
    for (uint32_t last = 0;; last = posted) {
        __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t now;
            while ((now = box->posted) == last) {
            }
            __threadfence_system();
            posted = now;
            bytes = box->bytes;
        }
        __syncthreads();
        if (posted == END) return;
        for (unsigned i = threadIdx.x; i < bytes / sizeof(int4); i += blockDim.x) to[i] = __ldcv(from + i);
        __threadfence_system();
        __syncthreads();
        if (threadIdx.x == 0) box->done = posted;
    }
}

struct Work {
    const char *path;
    int file, threads, pieces;
    double seconds;
    uint64_t blocks;
    Mailbox *boxes;
    char *slots, *targets;
    size_t room;
};

enum Way { PREAD, OWN_FD, DRIVER, RESIDENT };

static void caller(const Work &work, Way way, int index, std::atomic<bool> &stop, std::atomic<uint64_t> &moved) {
    char *slot = work.slots + index * work.room;
    Mailbox *box = &work.boxes[index];
    int file = way == OWN_FD ? open(work.path, O_RDONLY) : work.file;
    cudaStream_t stream;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    uint64_t dice = 0x9e3779b97f4a7c15ull * (index + 1), count = 0;
    uint32_t turn = box->posted;
    while (!stop.load(std::memory_order_relaxed)) {
        for (int piece = 0; piece < work.pieces; piece++) {
            dice ^= dice << 13, dice ^= dice >> 7, dice ^= dice << 17;
            if (pread(file, slot + piece * PIECE, PIECE, dice % work.blocks * PIECE) != (ssize_t)PIECE) {
                perror("pread");
                exit(1);
            }
        }
        if (way == DRIVER) {
            must(cudaMemcpyAsync(work.targets + index * work.room, slot, work.pieces * PIECE, cudaMemcpyHostToDevice, stream));
            must(cudaStreamSynchronize(stream));
        } else if (way == RESIDENT) {
            box->bytes = work.pieces * PIECE;
            std::atomic_thread_fence(std::memory_order_seq_cst);
            box->posted = ++turn;
            while (box->done != turn) __builtin_ia32_pause();
        }
        count += work.pieces;
    }
    moved += count;
    if (way == OWN_FD) close(file);
}

static double cpu() {
    rusage use;
    getrusage(RUSAGE_SELF, &use);
    return use.ru_utime.tv_sec + use.ru_stime.tv_sec + (use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
}

static void measure(const Work &work, Way way, const char *name) {
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> moved{0};
    std::vector<std::thread> threads;
    double before = cpu();
    auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < work.threads; i++) threads.emplace_back([&, i] { caller(work, way, i, stop, moved); });
    std::this_thread::sleep_for(std::chrono::duration<double>(work.seconds));
    stop = true;
    for (auto &thread : threads) thread.join();
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    double rate = moved / seconds;
    printf("%-9s %8.0f K IOPS  %6.2f us of CPU a piece  %6.2f us a batch\n", name, rate / 1e3, (cpu() - before) / moved * 1e6,
           work.threads * work.pieces / rate * 1e6);
    fflush(stdout);
}

int main(int count, char **words) {
    if (count < 2) {
        fprintf(stderr, "usage: batch_floor FILE [THREADS [PIECES [SECONDS]]]\n");
        return 2;
    }
    Work work{};
    work.path = words[1];
    work.threads = count > 2 ? atoi(words[2]) : 16;
    work.pieces = count > 3 ? atoi(words[3]) : 4;
    work.seconds = count > 4 ? atof(words[4]) : 3;
    work.file = open(work.path, O_RDONLY);
    struct stat facts;
    if (work.file < 0 || fstat(work.file, &facts) != 0 || facts.st_size < (off_t)PIECE) {
        perror(work.path);
        return 1;
    }
    work.blocks = facts.st_size / PIECE;
    work.room = work.pieces * PIECE;
    std::vector<char> warm(1 << 20);
    for (off_t at = 0; pread(work.file, warm.data(), warm.size(), at) > 0; at += warm.size()) {
    }
    must(cudaHostAlloc(&work.slots, work.threads * work.room, cudaHostAllocMapped));
    must(cudaHostAlloc(&work.boxes, work.threads * sizeof(Mailbox), cudaHostAllocMapped));
    must(cudaMalloc(&work.targets, work.threads * work.room));
    memset(work.slots, 0, work.threads * work.room);
    memset((void *)work.boxes, 0, work.threads * sizeof(Mailbox));
    measure(work, PREAD, "pread");
    measure(work, OWN_FD, "own fd");
    measure(work, DRIVER, "driver");
    cudaStream_t stream;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    resident<<<work.threads, 256, 0, stream>>>(work.boxes, work.slots, work.targets, work.room);
    must(cudaGetLastError());
    measure(work, RESIDENT, "resident");
    for (int i = 0; i < work.threads; i++) work.boxes[i].posted = END;
    must(cudaStreamSynchronize(stream));
    return 0;
}
