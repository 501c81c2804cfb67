/* Requests that streams refuse, the errors, and that a capture survives. */
#include "check.h"

static size_t size = 4096;
static off_t file_offset, memory_offset;
static ssize_t done;

static void registering(void) {
    CUstream stream = gpu_stream(1);
    CODE(cuFileStreamRegister(stream, 0x10), CU_FILE_INVALID_VALUE);
    CODE(cuFileStreamRegister(stream, 0xFFFFFFFF), CU_FILE_INVALID_VALUE);
    for (unsigned flags = 0; flags <= 0xF; flags++) {
        OK(cuFileStreamRegister(stream, flags));
        CODE(cuFileStreamRegister(stream, flags), CU_FILE_INVALID_VALUE);
        OK(cuFileStreamDeregister(stream));
    }
    CHECK(cuFileStreamDeregister(stream).err != CU_FILE_SUCCESS);
    OK(cuFileStreamRegister(stream, 1));
    OK(cuFileDriverClose()); /* forgets it */
    EQ(cuFileUseCount(), 0);
    OK(cuFileDriverOpen());
    OK(cuFileStreamRegister(stream, 1));
    OK(cuFileStreamDeregister(stream));
}

static void submissions(const char *folder, CUfileHandle_t handle, void *device) {
    CUstream stream = gpu_stream(1);
    CODE(cuFileReadAsync(NULL, device, &size, &file_offset, &memory_offset, &done, stream),
         CU_FILE_HANDLE_NOT_REGISTERED);
    CODE(cuFileWriteAsync((CUfileHandle_t)0x99, device, &size, &file_offset, &memory_offset, &done, stream),
         CU_FILE_HANDLE_NOT_REGISTERED);
    CODE(cuFileReadAsync(handle, device, NULL, &file_offset, &memory_offset, &done, stream), CU_FILE_INVALID_VALUE);
    CODE(cuFileReadAsync(handle, device, &size, NULL, &memory_offset, &done, stream), CU_FILE_INVALID_VALUE);
    CODE(cuFileReadAsync(handle, device, &size, &file_offset, NULL, &done, stream), CU_FILE_INVALID_VALUE);
    CODE(cuFileReadAsync(handle, device, &size, &file_offset, &memory_offset, NULL, stream), CU_FILE_INVALID_VALUE);
    int fd = open(path_in(folder, "data"), O_WRONLY);
    CUfileHandle_t only = register_fd(fd);
    CODE(cuFileReadAsync(only, device, &size, &file_offset, &memory_offset, &done, stream),
         CU_FILE_INVALID_FILE_OPEN_FLAG);
    cuFileHandleDeregister(only);
    close(fd);
    fd = open(path_in(folder, "data"), O_RDONLY);
    only = register_fd(fd);
    CUfileError_t answer = cuFileWriteAsync(only, device, &size, &file_offset, &memory_offset, &done, stream);
    CHECK(answer.err == CU_FILE_INVALID_FILE_OPEN_FLAG || answer.err == CU_FILE_SUCCESS);
    gpu_wait(stream);
    if (answer.err == CU_FILE_SUCCESS) CHECK(done < 0);
    cuFileHandleDeregister(only);
    close(fd);
}

/* What is wrong only when the stream gets there comes as a result; the stream goes on. */
static void failures(CUfileHandle_t handle, void *device) {
    CUstream stream = gpu_stream(1);
    static size_t good = 4096, whole = 4096;
    static off_t wrong = -1, zero = 0, far = 1 << 30;
    static ssize_t a, b, c;
    a = b = c = 12345;
    OK(cuFileReadAsync(handle, device, &good, &wrong, &zero, &a, stream));
    OK(cuFileReadAsync(handle, device, &good, &zero, &far, &b, stream)); /* out of the allocation */
    OK(cuFileReadAsync(handle, device, &whole, &zero, &zero, &c, stream));
    gpu_wait(stream);
    CHECK(a < 0 && b < 0);
    CHECK(a == -1 || IS_CUFILE_ERR((int)a));
    EQ(c, 4096);
    GPU_SAME(device, 19, 0, 4096);
}

/* A capturing stream takes no I/O and stays good; another thread's capture does not mind our work. */
static void capturing(const char *folder, CUfileHandle_t handle, void *device) {
    CUstream stream = gpu_stream(1), other = gpu_stream(1);
    for (int mode = 0; mode < 3; mode++) {
        CU_OK(cuStreamBeginCapture_v2, (uint64_t, int), (uint64_t)stream, mode);
        CODE(cuFileReadAsync(handle, device, &size, &file_offset, &memory_offset, &done, stream),
             CU_FILE_ASYNC_NOT_SUPPORTED);
        CODE(cuFileWriteAsync(handle, device, &size, &file_offset, &memory_offset, &done, stream),
             CU_FILE_ASYNC_NOT_SUPPORTED);
        /* Everything else goes on meanwhile, first uses included. */
        int fd = new_file(folder, "captured", 20 + mode, 100000, 0);
        CUfileHandle_t fresh = register_fd(fd);
        OK(cuFileBufRegister(device, 1 * MIB, 0));
        EQ(cuFileRead(fresh, device, 50000, 1, 0), 50000);
        done = 0;
        OK(cuFileReadAsync(fresh, device, &size, &file_offset, &memory_offset, &done, other));
        for (int i = 0; i < 10000 && __atomic_load_n(&done, __ATOMIC_ACQUIRE) == 0; i++) usleep(1000);
        EQ(done, size);
        /* The result is there before the stream goes on, so before the bytes are. They are there when the stream gets to
           the next thing; waiting for the stream is not allowed during a capture. */
        ssize_t next = 0;
        off_t beyond = 500000;
        OK(cuFileReadAsync(fresh, device, &size, &file_offset, &beyond, &next, other));
        for (int i = 0; i < 10000 && __atomic_load_n(&next, __ATOMIC_ACQUIRE) == 0; i++) usleep(1000);
        EQ(next, size);
        GPU_SAME(device, 20 + mode, 0, size);
        OK(cuFileBufDeregister(device));
        cuFileHandleDeregister(fresh);
        close(fd);
        uint64_t graph = 99;
        CU_OK(cuStreamEndCapture, (uint64_t, uint64_t *), (uint64_t)stream, &graph);
        EQ(graph, 0); /* no work of forebay was captured */
    }
}

/* The stream takes a part of it, refuses the rest so late that the file was read, and can be closed all the same. */
static void a_late_refusal(CUfileHandle_t handle, void *device) {
    CUstream stream = gpu_stream(1);
    ((void (*)(const char *, uint64_t))gpu_symbol("fake_cuda_hang_next"))("cuLaunchKernel", 100);
    gpu_fails("cuLaunchKernel", 1, 0, 1);
    CUfileError_t answer = cuFileReadAsync(handle, device, &size, &file_offset, &memory_offset, &done, stream);
    CHECK(answer.err != CU_FILE_SUCCESS);
    gpu_heals();
    gpu_wait(stream);
    cuFileHandleDeregister(handle);
    OK(cuFileDriverClose());
    EQ(cuFileUseCount(), 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    gpu_start();
    int fd = new_file(argv[1], "data", 19, 1 * MIB, 0);
    OK(cuFileDriverOpen());
    registering();
    CUfileHandle_t handle = register_fd(fd);
    char *device = gpu_alloc(1 * MIB);
    submissions(argv[1], handle, device);
    failures(handle, device);
    capturing(argv[1], handle, device);
    a_late_refusal(handle, device);
    return 0;
}
