// Copies of pieces by the threads of a team, and the kernel that scatters or gathers a list of them.

// The threads that copy one piece together: this one's place among them, and which of the piece's parts they take.
struct Team {
    u32 at, threads;
    u32 part, parts;
};

// All threads of the block; the blocks in y share the piece.
static __device__ inline Team block_team() {
    Team team = {THREAD, THREADS, PART, PARTS};
    return team;
}

// Copies `count` values of one type. The teams that share the piece take turns, each moving four values a thread:
// four loads are in flight before the first store.
template <typename T>
static __device__ inline void copy_values(const Team team, u64 dst_address, u64 src_address, u64 count) {
    GLOBAL(T) *dst = (GLOBAL(T) *)dst_address;
    GLOBAL(T) *src = (GLOBAL(T) *)src_address;
    const u64 threads = team.threads;
    const u64 tile = 4 * threads;
    for (u64 start = team.part * tile; start < count; start += team.parts * tile) {
        u64 at = start + team.at;
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

// Copies a few bytes.
static __device__ inline void copy_edge(const Team team, u64 dst, u64 src, u64 len) {
    for (u64 at = team.at; at < len; at += team.threads) ((GLOBAL(u8) *)dst)[at] = ((GLOBAL(u8) *)src)[at];
}

// Copies a piece whose source and destination are congruent modulo the size of T: the edges byte by byte (by the
// first of the teams that share the piece), the middle in values of T.
template <typename T>
static __device__ inline void copy_congruent(const Team team, u64 dst, u64 src, u64 len) {
    const u64 head = least((0 - dst) & (sizeof(T) - 1), len);
    const u64 count = (len - head) / sizeof(T);
    const u64 tail = head + count * sizeof(T);
    if (team.part == 0) {
        copy_edge(team, dst, src, head);
        copy_edge(team, dst + tail, src + tail, len - tail);
    }
    copy_values<T>(team, dst + head, src + head, count);
}

// Copies a piece of any alignment in the widest values that it allows.
static __device__ inline void copy_piece(const Team team, u64 dst, u64 src, u64 len) {
    const u64 differ = src ^ dst;
    if ((differ & 15) == 0) {
        copy_congruent<u32x4>(team, dst, src, len);
    } else if ((differ & 7) == 0) {
        copy_congruent<u64>(team, dst, src, len);
    } else if ((differ & 3) == 0) {
        copy_congruent<u32>(team, dst, src, len);
    } else {
        copy_values<u8>(team, dst, src, len);
    }
}

// One piece for each block in x; the blocks in y share it. The block has a multiple of 32 threads.
extern "C" __global__ LAUNCH_BOUNDS(256) void forebay_scatter(const CopyPiece *list, u32 count) {
    const u32 index = BLOCK;
    if (index >= count) return;
    GLOBAL(CopyPiece) *piece = (GLOBAL(CopyPiece) *)(u64)(list + index);
    copy_piece(block_team(), piece->dst, piece->src, piece->len);
}
