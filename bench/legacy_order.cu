// What orders a copy behind the default streams, and what it costs. Facts behind docs/decisions on stream order.
//   nvcc -O2 -arch=sm_90 -o legacy_order bench/legacy_order.cu -lcuda -lpthread && ./legacy_order
#include <cuda.h>
#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#define LEGACY CU_STREAM_LEGACY
#define PER_THREAD CU_STREAM_PER_THREAD
using Clock = std::chrono::steady_clock;

static const char *name(CUresult code) {
    const char *text = "?";
    cuGetErrorName(code, &text);
    return text;
}
static void must_(CUresult code, const char *what, int line) {
    if (code != CUDA_SUCCESS) {
        printf("line %d: %s: %s\n", line, what, name(code));
        exit(1);
    }
}
#define must(call) must_(call, #call, __LINE__)

__global__ void spin(long long nanoseconds) {
    long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < nanoseconds);
}
__global__ void store(uint32_t *to, uint32_t value) { *to = value; }

static CUcontext context;
static double since(Clock::time_point start) {
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}
static CUstream make(unsigned flags) {
    CUstream stream;
    must(cuStreamCreate(&stream, flags));
    return stream;
}
static uint32_t *word_of(CUdeviceptr *device) {
    void *host;
    must(cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    memset(host, 0, 4096);
    must(cuMemHostGetDevicePointer(device, host, 0));
    return (uint32_t *)host;
}

// How long a small operation on `stream` takes when `busy` has a kernel of 30 ms.
static void waits(const char *title, CUstream busy, CUstream stream) {
    const long long length = 30'000'000;
    CUdeviceptr device, word;
    must(cuMemAlloc(&device, 4096));
    uint32_t *host = word_of(&word);
    const char *kinds[] = {"copy in", "copy out", "kernel", "write value", "event"};
    printf("%-44s", title);
    for (int kind = 0; kind < 5; kind++) {
        must(cuCtxSynchronize());
        spin<<<1, 1, 0, (cudaStream_t)busy>>>(length);
        auto start = Clock::now();
        CUevent event;
        must(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
        switch (kind) {
        case 0: must(cuMemcpyHtoDAsync(device, host + 64, 512, stream)); break;
        case 1: must(cuMemcpyDtoHAsync(host + 64, device, 512, stream)); break;
        case 2: store<<<1, 1, 0, (cudaStream_t)stream>>>((uint32_t *)word, 1); break;
        case 3: must(cuStreamWriteValue32(stream, word, 7, 0)); break;
        }
        must(cuEventRecord(event, stream));
        while (cuEventQuery(event) == CUDA_ERROR_NOT_READY) {}
        printf("  %s %s", kinds[kind], since(start) > length / 1000 * 0.8 ? "WAITS" : "runs at once");
        must(cuEventDestroy(event));
    }
    printf("\n");
    must(cuCtxSynchronize());
    must(cuMemFree(device));
}

static void queries(const char *title, CUstream busy) {
    must(cuCtxSynchronize());
    spin<<<1, 1, 0, (cudaStream_t)busy>>>(20'000'000);
    CUresult legacy = cuStreamQuery(LEGACY), mine = cuStreamQuery(PER_THREAD), others = CUDA_SUCCESS;
    std::thread([&] {
        must(cuCtxSetCurrent(context));
        others = cuStreamQuery(PER_THREAD);
    }).join();
    printf("%-44s  query legacy %s, per-thread %s, per-thread of another thread %s\n", title, name(legacy), name(mine),
           name(others));
    must(cuCtxSynchronize());
}

// What another thread may do while a stream is captured.
static void captures(const char *title, unsigned flags, CUstreamCaptureMode mode, CUstream given) {
    struct Act {
        const char *name;
        std::function<CUresult(CUdeviceptr, void *)> run;
    };
    static CUstream blocking = make(CU_STREAM_DEFAULT), free_one = make(CU_STREAM_NON_BLOCKING);
    static CUevent event = nullptr;
    if (!event) must(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    std::vector<Act> acts = {
        {"is capturing legacy", [](CUdeviceptr, void *) { CUstreamCaptureStatus s; auto r = cuStreamIsCapturing(LEGACY, &s); return r ? r : (CUresult)(s ? 10000 + s : 0); }},
        {"is capturing per-thread", [](CUdeviceptr, void *) { CUstreamCaptureStatus s; auto r = cuStreamIsCapturing(PER_THREAD, &s); return r ? r : (CUresult)(s ? 10000 + s : 0); }},
        {"query legacy", [](CUdeviceptr, void *) { return cuStreamQuery(LEGACY); }},
        {"query per-thread", [](CUdeviceptr, void *) { return cuStreamQuery(PER_THREAD); }},
        {"record on legacy", [](CUdeviceptr, void *) { return cuEventRecord(event, LEGACY); }},
        {"copy, non-blocking", [](CUdeviceptr d, void *h) { auto r = cuMemcpyHtoDAsync(d, h, 64, free_one); return r ? r : cuStreamQuery(free_one); }},
        {"copy, blocking", [](CUdeviceptr d, void *h) { return cuMemcpyHtoDAsync(d, h, 64, blocking); }},
        {"kernel, blocking", [](CUdeviceptr d, void *) { store<<<1, 1, 0, (cudaStream_t)blocking>>>((uint32_t *)d, 1); return (CUresult)0; }},
        {"write value, blocking", [](CUdeviceptr d, void *) { return cuStreamWriteValue32(blocking, d, 1, 0); }},
        {"copy, per-thread", [](CUdeviceptr d, void *h) { return cuMemcpyHtoDAsync(d, h, 64, PER_THREAD); }},
        {"synchronise blocking", [](CUdeviceptr, void *) { return cuStreamSynchronize(blocking); }},
    };
    printf("%s\n", title);
    CUdeviceptr device;
    void *host;
    must(cuMemAlloc(&device, 4096));
    must(cuMemHostAlloc(&host, 4096, 0));
    for (auto &act : acts) {
        must(cuCtxSynchronize());
        CUstream stream = given ? given : make(flags);
        must(cuStreamBeginCapture(stream, mode));
        must(cuMemsetD8Async(device + 1024, 1, 64, stream));
        CUresult there = CUDA_SUCCESS, here = CUDA_SUCCESS;
        std::thread([&] {
            must(cuCtxSetCurrent(context));
            CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
            must(cuThreadExchangeStreamCaptureMode(&relaxed));
            there = act.run(device, host);
        }).join();
        CUgraph graph = nullptr;
        CUresult end = cuStreamEndCapture(stream, &graph);
        size_t nodes = 0;
        if (graph) {
            cuGraphGetNodes(graph, nullptr, &nodes);
            cuGraphDestroy(graph);
        }
        char number[32];
        snprintf(number, sizeof number, "status %d", (int)there - 10000);
        printf("   %-26s -> %-40s capture ends with %s, %zu node(s)\n", act.name, (int)there >= 10000 ? number : name(there),
               name(end), nodes);
        cuCtxSynchronize();
        if (!given) must(cuStreamDestroy(stream));
        (void)here;
    }
    must(cuMemFree(device));
    must(cuMemFreeHost(host));
}

// Calls a second and microseconds a call of `body(thread)` in so many threads.
static void cost(const char *title, std::function<std::function<void()>()> prepare) {
    printf("%-52s", title);
    for (int threads : {1, 4, 16}) {
        std::atomic<bool> go{false}, stop{false};
        std::atomic<uint64_t> calls{0};
        std::atomic<int> ready{0};
        std::vector<std::thread> crew;
        for (int i = 0; i < threads; i++)
            crew.emplace_back([&] {
                must(cuCtxSetCurrent(context));
                auto body = prepare();
                for (int warm = 0; warm < 100; warm++) body();
                ready++;
                while (!go) {}
                uint64_t mine = 0;
                while (!stop) {
                    body();
                    mine++;
                }
                calls += mine;
            });
        while (ready < threads) {}
        auto start = Clock::now();
        go = true;
        std::this_thread::sleep_for(std::chrono::milliseconds(400));
        stop = true;
        for (auto &one : crew) one.join();
        double us = since(start);
        printf("  x%-2d %8.2f us  %8.0f K/s", threads, us * threads / calls, calls / us * 1000);
    }
    printf("\n");
}

enum Before { NOTHING, IS_CAPTURING, IS_CAPTURING_MINE, QUERY, QUERY_MINE, IS_CAPTURING_QUERY };
static std::function<std::function<void()>()> copies(int kind, Before before) {
    return [=]() -> std::function<void()> {
        CUstream stream = kind == 2 ? PER_THREAD : make(kind == 0 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT);
        CUdeviceptr device, word;
        must(cuMemAlloc(&device, 1 << 16));
        auto *host = (volatile uint32_t *)word_of(&word);
        void *from;
        must(cuMemHostAlloc(&from, 1 << 16, CU_MEMHOSTALLOC_PORTABLE));
        auto *number = new uint32_t(0);
        return [=] {
            CUstreamCaptureStatus status;
            if (before == IS_CAPTURING || before == IS_CAPTURING_QUERY) must(cuStreamIsCapturing(LEGACY, &status));
            if (before == IS_CAPTURING_MINE) must(cuStreamIsCapturing(PER_THREAD, &status));
            if (before == QUERY || before == IS_CAPTURING_QUERY) (void)cuStreamQuery(LEGACY);
            if (before == QUERY_MINE) (void)cuStreamQuery(PER_THREAD);
            must(cuMemcpyHtoDAsync(device, from, 4096, stream));
            must(cuStreamWriteValue32(stream, word, ++*number, 0));
            while (*host != *number) {}
        };
    };
}

// Copies that come right after a pageable copy: how many see old bytes.
static void pageable(const char *title, int kind, bool ask) {
    CUstream stream = kind == 2 ? PER_THREAD : make(kind == 0 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT);
    int wrong = 0, wrong_set = 0;
    const int rounds = 20000;
    CUdeviceptr device;
    const size_t size = 60 << 10;
    must(cuMemAlloc(&device, 64 << 20));
    char *pages = (char *)malloc(size);
    unsigned char *out;
    must(cuMemHostAlloc((void **)&out, size, 0));
    for (int i = 0; i < rounds; i++) {
        memset(pages, i & 255, size);
        cudaMemcpy((void *)device, pages, size, cudaMemcpyHostToDevice);
        if (ask) while (cuStreamQuery(LEGACY) == CUDA_ERROR_NOT_READY) {}
        must(cuMemcpyDtoHAsync(out, device, size, stream));
        must(cuStreamSynchronize(stream));
        wrong += out[size - 1] != (i & 255);
    }
    for (int i = 0; i < 2000; i++) {
        cudaMemset((void *)device, i & 255, 64 << 20);
        if (ask) while (cuStreamQuery(LEGACY) == CUDA_ERROR_NOT_READY) {}
        must(cuMemcpyDtoHAsync(out, device + (64 << 20) - 512, 512, stream));
        must(cuStreamSynchronize(stream));
        wrong_set += out[511] != (i & 255);
    }
    printf("%-52s  pageable copy: %d of %d old;  memset: %d of 2000 old\n", title, wrong, rounds, wrong_set);
    must(cuMemFree(device));
    free(pages);
}

static void sync_memops() {
    CUdeviceptr device;
    must(cuMemAlloc(&device, 1 << 30));
    for (int on = 0; on < 2; on++) {
        unsigned flag = on;
        if (on) must(cuPointerSetAttribute(&flag, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, device));
        must(cuCtxSynchronize());
        auto start = Clock::now();
        cudaMemset((void *)device, 1, 1 << 30);
        double memset_us = since(start);
        must(cuCtxSynchronize());
        start = Clock::now();
        must(cuMemcpyDtoDAsync(device, device + (512 << 20), 512 << 20, 0));
        double copy_us = since(start);
        must(cuCtxSynchronize());
        printf("SYNC_MEMOPS %d: cudaMemset of 1 GiB returns after %.0f us, device copy after %.0f us\n", on, memset_us, copy_us);
    }
    unsigned flag = 1;
    auto start = Clock::now();
    for (int i = 0; i < 1000; i++) must(cuPointerSetAttribute(&flag, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, device));
    printf("setting it: %.2f us\n", since(start) / 1000);
    must(cuMemFree(device));
}

int main() {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    cudaFree(nullptr);
    must(cuCtxGetCurrent(&context));
    CUstream blocking = make(CU_STREAM_DEFAULT), other = make(CU_STREAM_DEFAULT), free_one = make(CU_STREAM_NON_BLOCKING);
    spin<<<1, 1>>>(1000);
    must(cuCtxSynchronize());

    printf("-- who is seen by a query\n");
    queries("a kernel on the legacy stream", LEGACY);
    queries("a kernel on this thread's default stream", PER_THREAD);
    queries("a kernel on a blocking stream", blocking);
    queries("a kernel on a non-blocking stream", free_one);

    printf("-- what waits for a kernel of 30 ms\n");
    waits("legacy busy, own blocking stream", LEGACY, other);
    waits("legacy busy, own non-blocking stream", LEGACY, free_one);
    waits("legacy busy, per-thread stream", LEGACY, PER_THREAD);
    waits("per-thread busy, own blocking stream", PER_THREAD, other);
    waits("per-thread busy, legacy", PER_THREAD, LEGACY);
    waits("blocking busy, own blocking stream", blocking, other);

    printf("-- old bytes after work that was only queued\n");
    pageable("own non-blocking stream", 0, false);
    pageable("own non-blocking stream, legacy asked first", 0, true);
    pageable("own blocking stream", 1, false);
    pageable("per-thread stream", 2, false);

    sync_memops();

    printf("-- costs\n");
    cost("is capturing legacy", [] { return [] { CUstreamCaptureStatus s; must(cuStreamIsCapturing(LEGACY, &s)); }; });
    cost("is capturing per-thread", [] { return [] { CUstreamCaptureStatus s; must(cuStreamIsCapturing(PER_THREAD, &s)); }; });
    cost("query legacy", [] { return [] { (void)cuStreamQuery(LEGACY); }; });
    cost("query per-thread", [] { return [] { (void)cuStreamQuery(PER_THREAD); }; });
    cost("4 KiB: non-blocking", copies(0, NOTHING));
    cost("4 KiB: non-blocking, is capturing", copies(0, IS_CAPTURING));
    cost("4 KiB: non-blocking, query legacy", copies(0, QUERY));
    cost("4 KiB: non-blocking, query per-thread", copies(0, QUERY_MINE));
    cost("4 KiB: non-blocking, is capturing, query", copies(0, IS_CAPTURING_QUERY));
    cost("4 KiB: blocking", copies(1, NOTHING));
    cost("4 KiB: blocking, is capturing legacy", copies(1, IS_CAPTURING));
    cost("4 KiB: blocking, query per-thread", copies(1, QUERY_MINE));
    cost("4 KiB: per-thread", copies(2, NOTHING));
    cost("4 KiB: per-thread, is capturing per-thread", copies(2, IS_CAPTURING_MINE));

    printf("-- costs beside a thread that keeps the legacy stream full (kernels of 20 us)\n");
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> kernels{0};
    std::thread filler([&] {
        must(cuCtxSetCurrent(context));
        CUevent marks[8];
        for (auto &mark : marks) must(cuEventCreate(&mark, CU_EVENT_DISABLE_TIMING));
        for (uint64_t i = 0; !stop; i++) {
            if (i >= 8) must(cuEventSynchronize(marks[i % 8]));
            spin<<<1, 1>>>(20'000);
            must(cuEventRecord(marks[i % 8], LEGACY));
            kernels++;
        }
        must(cuCtxSynchronize());
    });
    auto rate = [&](const char *title, std::function<std::function<void()>()> prepare) {
        uint64_t before = kernels;
        auto start = Clock::now();
        cost(title, prepare);
        printf("      kernels of the filler: %.0f /s\n", (kernels - before) / since(start) * 1e6);
    };
    rate("(nothing)", [] { return [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }; });
    rate("4 KiB: non-blocking", copies(0, NOTHING));
    rate("4 KiB: blocking", copies(1, NOTHING));
    rate("4 KiB: per-thread", copies(2, NOTHING));
    rate("query legacy", [] { return [] { (void)cuStreamQuery(LEGACY); }; });
    stop = true;
    filler.join();

    printf("-- captures in another thread\n");
    captures("a blocking stream, global", CU_STREAM_DEFAULT, CU_STREAM_CAPTURE_MODE_GLOBAL, nullptr);
    captures("a blocking stream, relaxed", CU_STREAM_DEFAULT, CU_STREAM_CAPTURE_MODE_RELAXED, nullptr);
    captures("a non-blocking stream, global", CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_GLOBAL, nullptr);
    captures("the capturing thread's per-thread stream, global", 0, CU_STREAM_CAPTURE_MODE_GLOBAL, PER_THREAD);
    printf("done\n");
    return 0;
}
