// Pieces of one range of memory, side by side.

// What a gather is asked for: crate::Gather.
struct Gather {
    u64 base, len;
    u64 offsets, count;
    u64 piece, out;
    GatherReport *report;
};

// Pieces from this size on are copied by whole blocks, smaller ones by warps. As in src/cuda/kernels.rs.
static const u64 GATHER_BLOCK_BYTES = 32 << 10;

// Fills a piece's place with zeros. Rare: words of eight bytes do.
static __device__ inline void clear(const Team team, u64 dst, u64 len) {
    const u64 head = least((0 - dst) & 7, len);
    const u64 tail = head + (len - head) / 8 * 8;
    const u64 first = team.part * team.threads + team.at;
    const u64 stride = (u64)team.parts * team.threads;
    for (u64 at = first; at < head; at += stride) ((GLOBAL(u8) *)dst)[at] = 0;
    for (u64 at = head + 8 * first; at < tail; at += 8 * stride) *(GLOBAL(u64) *)(dst + at) = 0;
    for (u64 at = tail + first; at < len; at += stride) ((GLOBAL(u8) *)dst)[at] = 0;
}

// Copies piece `index`, or refuses it: what does not lie in the range is never read.
static __device__ inline void gather_piece(const Gather &gather, const Team team, u64 index, u64 offset) {
    const u64 dst = gather.out + index * gather.piece;
    if (gather.piece <= gather.len && offset <= gather.len - gather.piece) {
        copy_piece(team, dst, gather.base + offset, gather.piece);
        return;
    }
    clear(team, dst, gather.piece);
    if (team.at == 0 && team.part == 0) {
        __atomic_fetch_add(&gather.report->refused, 1ull, __ATOMIC_RELAXED);
        __atomic_fetch_min(&gather.report->first, index, __ATOMIC_RELAXED);
    }
}

// Offset number `index`, for an index in bounds.
static __device__ inline u64 offset_at(const Gather &gather, u64 index) {
    return index < gather.count ? ((GLOBAL(u64) *)gather.offsets)[index] : 0;
}

// The value that lane `from` of the warp has.
static __device__ inline u64 from_lane(u64 value, u32 from) {
    const u32 low = __nvvm_shfl_sync_idx_i32(~0u, (u32)value, from, 31);
    const u32 high = __nvvm_shfl_sync_idx_i32(~0u, (u32)(value >> 32), from, 31);
    return (u64)high << 32 | low;
}

// How many lanes copy a piece together, as a power of two: one for each 16 bytes, at most a warp.
static __device__ inline u32 lanes_shift(u64 piece) {
    u32 shift = 0;
    while (shift < 5 && (16ull << shift) < piece) shift++;
    return shift;
}

// Piece i of `count`, all of `piece` bytes, goes from base + offsets[i] to out + i * piece. `report` starts as
// {0, greatest u64}. Blocks are in x for more pieces and in y for parts of each.
//
// A warp (for large pieces: a block) takes up to 32 consecutive pieces a round and reads their offsets by one load,
// a lane each: offsets may lie in host memory, where a read of 8 bytes costs as much as one of 256. Those of the next
// round are on their way meanwhile. Small pieces are copied by groups of lanes, as many at a time as there are groups.
extern "C" __global__ LAUNCH_BOUNDS(256) void forebay_gather(u64 base, u64 len, u64 offsets, u64 count, u64 piece,
                                                             u64 out, GatherReport *report) {
    const Gather gather = {base, len, offsets, count, piece, out, report};
    const bool by_block = piece >= GATHER_BLOCK_BYTES;
    const u32 lane = THREAD & 31;
    const u32 shift = lanes_shift(piece);
    const u32 groups = 32u >> shift;
    Team team = {lane & ((1u << shift) - 1), 1u << shift, PART, PARTS};
    u64 unit = (u64)BLOCK * (THREADS / 32) + THREAD / 32;
    u64 units = (u64)BLOCKS * (THREADS / 32);
    if (by_block) {
        team = block_team();
        unit = BLOCK;
        units = BLOCKS;
    }
    // All units get some: few pieces are not left to the first ones.
    const u64 fair = ((count + units - 1) / units + groups - 1) & ~(u64)(groups - 1);
    const u32 round = (u32)least(fair, 32);
    const u64 stride = units * round;
    u64 mine = lane < round ? offset_at(gather, unit * round + lane) : 0;
    for (u64 start = unit * round; start < count; start += stride) {
        const u64 next = lane < round ? offset_at(gather, start + stride + lane) : 0;
        const u32 here = (u32)least(round, count - start);
        for (u32 done = 0; done < here; done += groups) {
            const u32 which = done + (lane >> shift);
            const u64 offset = from_lane(mine, which);
            if (which < here) gather_piece(gather, team, start + which, offset);
        }
        mine = next;
    }
}
