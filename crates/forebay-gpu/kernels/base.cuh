// What CUDA's headers would define, and types that the kernels share.

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define LAUNCH_BOUNDS(threads) __attribute__((launch_bounds(threads)))
#define THREAD ((u32)__nvvm_read_ptx_sreg_tid_x())
#define THREADS ((u32)__nvvm_read_ptx_sreg_ntid_x())
#define BLOCK ((u32)__nvvm_read_ptx_sreg_ctaid_x())
#define BLOCKS ((u32)__nvvm_read_ptx_sreg_nctaid_x())
#define PART ((u32)__nvvm_read_ptx_sreg_ctaid_y())
#define PARTS ((u32)__nvvm_read_ptx_sreg_nctaid_y())
// Every address that comes here is global memory to the GPU; saying so spares the generic look-up.
#define GLOBAL(type) __attribute__((address_space(1))) type
#define SHARED(type) __attribute__((address_space(3))) type

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef u32 u32x4 __attribute__((ext_vector_type(4)));

struct CopyPiece {
    u64 src;
    u64 dst;
    u64 len;
};

struct CheckResult {
    u64 wrong_bytes;
    u64 first_wrong;
};

struct GatherReport {
    u64 refused;
    u64 first;
};

static __device__ inline u64 least(u64 a, u64 b) { return a < b ? a : b; }
