// forebay's kernels: scatter and gather of pieces, and the test pattern.
//
// Built by build.sh with clang alone: no CUDA toolkit, so no CUDA headers; what they would define stands below.
// Host memory that is read here is pinned and rewritten between launches: loads are plain ones, never through the
// read-only cache, so no `__ldg` and no `const __restrict__` parameters.

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define LAUNCH_BOUNDS(threads) __attribute__((launch_bounds(threads)))
#define THREAD __nvvm_read_ptx_sreg_tid_x()
#define THREADS __nvvm_read_ptx_sreg_ntid_x()
#define BLOCK __nvvm_read_ptx_sreg_ctaid_x()
#define BLOCKS __nvvm_read_ptx_sreg_nctaid_x()
#define PART __nvvm_read_ptx_sreg_ctaid_y()
#define PARTS __nvvm_read_ptx_sreg_nctaid_y()
// Every address that comes here is global memory to the GPU; saying so spares the generic look-up.
#define GLOBAL(type) __attribute__((address_space(1))) type

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

static __device__ inline u64 least(u64 a, u64 b) { return a < b ? a : b; }

// Copies `count` values of one type. The grid's blocks that share the piece take turns, each moving four values a
// thread: four loads are in flight before the first store.
template <typename T>
static __device__ inline void copy_values(u64 dst_address, u64 src_address, u64 count) {
    GLOBAL(T) *dst = (GLOBAL(T) *)dst_address;
    GLOBAL(T) *src = (GLOBAL(T) *)src_address;
    const u64 threads = THREADS;
    const u64 tile = 4 * threads;
    for (u64 start = PART * tile; start < count; start += PARTS * tile) {
        u64 at = start + THREAD;
        if (start + tile <= count) {
            T a = src[at];
            T b = src[at + threads];
            T c = src[at + 2 * threads];
            T d = src[at + 3 * threads];
            dst[at] = a;
            dst[at + threads] = b;
            dst[at + 2 * threads] = c;
            dst[at + 3 * threads] = d;
        } else {
            for (; at < count; at += threads) dst[at] = src[at];
        }
    }
}

// Copies a few bytes, at most as many as there are threads.
static __device__ inline void copy_edge(u64 dst, u64 src, u64 len) {
    const u32 at = THREAD;
    if (at < len) ((GLOBAL(u8) *)dst)[at] = ((GLOBAL(u8) *)src)[at];
}

// Copies a piece whose source and destination are congruent modulo the size of T: the edges byte by byte (by the
// first of the blocks that share the piece), the middle in values of T.
template <typename T>
static __device__ inline void copy_piece(u64 dst, u64 src, u64 len) {
    const u64 head = least((0 - dst) & (sizeof(T) - 1), len);
    const u64 count = (len - head) / sizeof(T);
    const u64 tail = head + count * sizeof(T);
    if (PART == 0) {
        copy_edge(dst, src, head);
        copy_edge(dst + tail, src + tail, len - tail);
    }
    copy_values<T>(dst + head, src + head, count);
}

// One piece for each block in x; the blocks in y share it. The block has a multiple of 32 threads.
extern "C" __global__ LAUNCH_BOUNDS(256) void forebay_scatter(const CopyPiece *list, u32 count) {
    const u32 index = BLOCK;
    if (index >= count) return;
    GLOBAL(CopyPiece) *piece = (GLOBAL(CopyPiece) *)(u64)(list + index);
    const u64 src = piece->src, dst = piece->dst, len = piece->len;
    const u64 differ = src ^ dst;
    if ((differ & 15) == 0) {
        copy_piece<u32x4>(dst, src, len);
    } else if ((differ & 7) == 0) {
        copy_piece<u64>(dst, src, len);
    } else if ((differ & 3) == 0) {
        copy_piece<u32>(dst, src, len);
    } else {
        copy_values<u8>(dst, src, len);
    }
}

// The word at `offset` of the file with this key: the same arithmetic as src/pattern.rs.
static __device__ inline u64 pattern_word(u64 key, u64 offset) {
    u64 z = key + (offset >> 3) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

static __device__ inline u8 pattern_byte(u64 key, u64 offset) {
    return (u8)(pattern_word(key, offset) >> (8 * (offset & 7)));
}

// The eight bytes of the pattern from any offset on.
static __device__ inline u64 pattern_bytes(u64 key, u64 offset) {
    const u64 skip = 8 * (offset & 7);
    const u64 low = pattern_word(key, offset);
    if (skip == 0) return low;
    return (low >> skip) | (pattern_word(key, offset + 8) << (64 - skip));
}

// How a range lies: `head` bytes up to the first aligned word, `words` aligned words, then bytes from `tail` on.
struct Layout {
    u64 head, words, tail;
};

static __device__ inline Layout layout(u64 address, u64 len) {
    Layout range;
    range.head = least((0 - address) & 7, len);
    range.words = (len - range.head) / 8;
    range.tail = range.head + range.words * 8;
    return range;
}

extern "C" __global__ LAUNCH_BOUNDS(256) void forebay_fill(u64 dst, u64 len, u64 key, u64 offset) {
    const Layout range = layout(dst, len);
    GLOBAL(u8) *bytes = (GLOBAL(u8) *)dst;
    GLOBAL(u64) *words = (GLOBAL(u64) *)(dst + range.head);
    const u64 first = (u64)BLOCK * THREADS + THREAD;
    const u64 stride = (u64)BLOCKS * THREADS;
    if (first < range.head) bytes[first] = pattern_byte(key, offset + first);
    if (range.tail + first < len) bytes[range.tail + first] = pattern_byte(key, offset + range.tail + first);
    for (u64 at = first; at < range.words; at += stride) {
        words[at] = pattern_bytes(key, offset + range.head + 8 * at);
    }
}

// What one thread has found.
struct Found {
    u64 wrong, first;
};

static __device__ inline void compare(Found &found, u64 offset, u64 here, u64 wanted) {
    u64 differ = here ^ wanted;
    if (differ == 0) return;
    const u64 word = (offset + __builtin_ctzll(differ) / 8) & ~7ull;
    found.first = least(found.first, word);
    for (; differ != 0; differ >>= 8) found.wrong += (differ & 255) != 0;
}

// Adds to `result`, which starts as {0, greatest u64}. `first_wrong` is the offset in the file of the first word
// with a wrong byte.
extern "C" __global__ LAUNCH_BOUNDS(256) void forebay_check(u64 src, u64 len, u64 key, u64 offset,
                                                            CheckResult *result) {
    const Layout range = layout(src, len);
    GLOBAL(u8) *bytes = (GLOBAL(u8) *)src;
    GLOBAL(u64) *words = (GLOBAL(u64) *)(src + range.head);
    const u64 first = (u64)BLOCK * THREADS + THREAD;
    const u64 stride = (u64)BLOCKS * THREADS;
    Found found = {0, ~0ull};
    if (first < range.head) compare(found, offset + first, bytes[first], pattern_byte(key, offset + first));
    const u64 tail = range.tail + first;
    if (tail < len) compare(found, offset + tail, bytes[tail], pattern_byte(key, offset + tail));
    for (u64 at = first; at < range.words; at += stride) {
        const u64 here = offset + range.head + 8 * at;
        compare(found, here, words[at], pattern_bytes(key, here));
    }
    if (found.wrong == 0) return;
    __atomic_fetch_add(&result->wrong_bytes, found.wrong, __ATOMIC_RELAXED);
    __atomic_fetch_min(&result->first_wrong, found.first, __ATOMIC_RELAXED);
}
