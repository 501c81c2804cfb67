// forebay's kernels: scatter and gather of pieces, copies by mailboxes, checksums, and the test pattern.
//
// Built by build.sh with clang alone: no CUDA toolkit, so no CUDA headers; what they would define stands below.
// Host memory that is read here is pinned and rewritten between launches: loads are plain ones, never through the
// read-only cache, so no `__ldg` and no `const __restrict__` parameters.

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

// A mailbox: crate::Resident tells of it. The host alone writes the first 128 bytes, the device alone the rest.
struct Mailbox {
    u32 posted, withdrawn;
    u64 len, src, dst;
    u32 unused[24];
    u32 claimed, done, declined, serving;
};

static const u64 MAILBOX_BYTES = 256;

// What the blocks of a life know in common: all zero between two lives. Those of one stream follow each other; streams
// that run at once have different ones.
struct Life {
    u64 began, active;
    u32 closing, left;
    u64 unused;
};

// One for each number that src/cuda/gpu.rs gives out.
static __device__ Life lives[64];

// What the block's first thread has claimed for all of it; no mailbox at the end.
struct ClaimedPiece {
    u64 mailbox;
    u64 src, dst, len;
    u32 number;
};

static __shared__ ClaimedPiece claimed;

// Mailboxes of one block at most: as MAILBOXES_OF_BLOCK in src/cuda/kernels.rs.
static const u32 MAILBOXES_OF_BLOCK = 4;
static __shared__ u32 mailboxes_seen[MAILBOXES_OF_BLOCK];

// A block that found nothing for this long looks less often: looks take room on the link.
static const u64 BUSY_LOOKS_NS = 20000;
static const u32 PAUSE_NS = 400;
// What a piece takes at most: some turns of the link, and its bytes at this rate while all blocks copy. As
// crate::Resident::takes.
static const u64 PIECE_NS = 5000;
static const u64 PIECE_BYTES_PER_NS = 4;

static __device__ inline u64 now_ns() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// The clocks of two multiprocessors may differ a little.
static __device__ inline u64 since(u64 now, u64 then) { return now > then ? now - then : 0; }

// Words that the host and the device share. Volatile accesses are relaxed ones of system scope.
static __device__ inline u32x4 load_words(u64 address) {
    u32x4 found;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w)
                 : "l"(address)
                 : "memory");
    return found;
}

static __device__ inline u32 load_word(u64 address) {
    u32 found;
    asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(found) : "l"(address) : "memory");
    return found;
}

// What the host wrote before this word is visible after it.
static __device__ inline u32 acquire_word(u64 address) {
    u32 found;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(found) : "l"(address) : "memory");
    return found;
}

static __device__ inline void store_word(u64 address, u32 value) {
    asm volatile("st.volatile.global.u32 [%0], %1;" : : "l"(address), "r"(value) : "memory");
}

static __device__ inline void fence_system() { asm volatile("fence.sc.sys;" : : : "memory"); }

#define MAILBOX_WORD(mailbox, field) ((mailbox) + __builtin_offsetof(Mailbox, field))

// The block's mailbox number `index`.
static __device__ inline u64 mailbox_of(u64 mailboxes, u32 index) {
    return mailboxes + (u64)(BLOCK + index * BLOCKS) * MAILBOX_BYTES;
}

static __device__ inline u64 joined(u32 low, u32 high) { return (u64)high << 32 | low; }

// The block's life: what its first thread knows.
struct Watch {
    Life *life;
    u64 began, active;
    u32 idle, most;
};

// Takes the request of a mailbox. False if that would last longer than the life. One that was withdrawn takes no time:
// `claimed` is of no mailbox then, and nothing was touched.
static __device__ inline bool take(const Watch &watch, u64 mailbox, u32 &seen) {
    // What the host wrote before it posted is visible from here on, to the block's other threads by the barrier. Looks are
    // no acquires: each would clear the first-level cache that the block shares with the user's kernels.
    const u32 number = acquire_word(MAILBOX_WORD(mailbox, posted));
    const u32x4 first = load_words(mailbox);
    const u32x4 second = load_words(mailbox + 16);
    const u64 len = joined(first.z, first.w);
    // Whoever withdraws while this block serves waits for its answer; what was withdrawn before is seen here.
    const bool withdrawn = (int)(first.y - number) >= 0;
    if (!withdrawn && since(now_ns(), watch.began) + PIECE_NS + len / PIECE_BYTES_PER_NS > watch.most) return false;
    seen = number;
    store_word(MAILBOX_WORD(mailbox, claimed), number);
    if (withdrawn) {
        store_word(MAILBOX_WORD(mailbox, declined), number);
        claimed.mailbox = 0;
        return true;
    }
    claimed.mailbox = mailbox;
    claimed.number = number;
    claimed.len = len;
    claimed.src = joined(second.x, second.y);
    claimed.dst = joined(second.z, second.w);
    return true;
}

// Looks at the block's mailboxes in turn until one has a request, which it takes, or the life is over. False at
// the end.
static __device__ inline bool claim_next(Watch &watch, u64 mailboxes, u32 count, u32 &turn) {
    for (;;) {
        const u32 closing = *(volatile u32 *)&watch.life->closing;
        for (u32 looks = 0; BLOCK + turn * BLOCKS < count && looks < MAILBOXES_OF_BLOCK; looks++) {
            const u32 index = turn;
            const u64 mailbox = mailbox_of(mailboxes, index);
            turn = BLOCK + (index + 1) * BLOCKS < count ? index + 1 : 0;
            const u32 number = load_word(MAILBOX_WORD(mailbox, posted));
            if (closing || number == mailboxes_seen[index]) continue;
            // A piece that may not end in time is the next life's.
            if (!take(watch, mailbox, mailboxes_seen[index])) {
                *(volatile u32 *)&watch.life->closing = 1;
                return false;
            }
            if (claimed.mailbox != 0) return true;
        }
        const u64 now = now_ns();
        if (closing || since(now, watch.began) >= watch.most) return false;
        if (since(now, watch.active) > watch.idle) {
            // Others may have been busy.
            const u64 active = *(volatile u64 *)&watch.life->active;
            if (active > watch.active) watch.active = active;
            if (since(now, watch.active) > watch.idle) {
                *(volatile u32 *)&watch.life->closing = 1;
                return false;
            }
        }
        if (since(now, watch.active) > BUSY_LOOKS_NS) asm volatile("nanosleep.u32 %0;" : : "r"(PAUSE_NS));
    }
}

// Says of the block's mailboxes whether it looks at them.
static __device__ inline void say_serving(u64 mailboxes, u32 count, u32 serving) {
    for (u32 index = 0; index < MAILBOXES_OF_BLOCK && BLOCK + index * BLOCKS < count; index++) {
        store_word(MAILBOX_WORD(mailbox_of(mailboxes, index), serving), serving);
    }
}

// Copies what is posted in mailboxes, each block for its own, until nothing was for `idle` ns, or for `life` ns in all.
// At the end writes `number` to the word at `ended`. `stream` is that of no other life that runs. The block has 256
// threads.
extern "C" __global__ LAUNCH_BOUNDS(256) void forebay_resident(u64 mailboxes, u32 count, u32 idle, u32 life, u64 ended,
                                                               u32 number, u32 stream) {
    Watch watch = {&lives[stream], 0, 0, idle, life};
    u32 turn = 0;
    if (THREAD == 0) {
        const u64 now = now_ns();
        u64 began = 0;
        __atomic_compare_exchange_n(&watch.life->began, &began, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
        watch.began = began == 0 ? now : began;
        watch.active = now;
        say_serving(mailboxes, count, 1);
        // Say, fence, look: the host withdraws, fences and looks whether this block serves. One of the two sees the other.
        fence_system();
        for (u32 index = 0; index < MAILBOXES_OF_BLOCK && BLOCK + index * BLOCKS < count; index++) {
            const u64 mailbox = mailbox_of(mailboxes, index);
            mailboxes_seen[index] = load_word(MAILBOX_WORD(mailbox, claimed));
        }
    }
    for (;;) {
        if (THREAD == 0 && !claim_next(watch, mailboxes, count, turn)) claimed.mailbox = 0;
        __syncthreads();
        if (claimed.mailbox == 0) break;
        copy_piece(block_team(), claimed.dst, claimed.src, claimed.len);
        __syncthreads();
        if (THREAD == 0) {
            // What all threads of the block wrote comes before the word.
            fence_system();
            store_word(MAILBOX_WORD(claimed.mailbox, done), claimed.number);
            watch.active = now_ns();
            *(volatile u64 *)&watch.life->active = watch.active;
        }
    }
    if (THREAD != 0) return;
    // All answers come before.
    fence_system();
    say_serving(mailboxes, count, 0);
    if (__atomic_fetch_add(&watch.life->left, 1u, __ATOMIC_RELAXED) + 1 < BLOCKS) return;
    *watch.life = {0, 0, 0, 0, 0};
    fence_system();
    store_word(ended, number);
}

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

// CRC-32C by polynomial arithmetic. A value of 32 bits is a polynomial over GF(2), its highest bit the coefficient of
// x^0 (the reflected order), taken modulo P. A state to which n bytes are added is the old one times x^(8n); bytes go
// in by XOR.
static const u32 CRC_POLYNOMIAL = 0x82F63B78;

// How far the lanes of a warp are apart, and how far a warp moves in one step: bytes.
static const u32 CRC_UNIT = 16;
static const u32 CRC_STEP = 32 * CRC_UNIT;

// A value of four bits at each of the eight places of a state.
static const u32 CRC_ENTRIES = 8 * 16;

static constexpr __device__ u32 crc_times_x(u32 value) { return (value >> 1) ^ ((value & 1) ? CRC_POLYNOMIAL : 0); }

static constexpr __device__ u32 crc_times(u32 a, u32 b) {
    u32 product = 0;
#pragma nounroll
    for (u32 bit = 1u << 31; bit != 0; bit >>= 1) {
        if (a & bit) product ^= b;
        b = crc_times_x(b);
    }
    return product;
}

struct CrcConstants {
    // What becomes of four bits of a state when CRC_STEP zero bytes go in: entry (place, bits).
    u32 steps[CRC_ENTRIES];
    // By what the state of a lane is multiplied at the end: x^8 for each byte that stands in the lanes after it.
    u32 lanes[32];
};

static constexpr CrcConstants crc_constants() {
    CrcConstants made = {};
    u32 step = 1u << 31;
    for (u32 bit = 0; bit < 8 * CRC_STEP; bit++) step = crc_times_x(step);
    for (u32 entry = 0; entry < CRC_ENTRIES; entry++) {
        made.steps[entry] = crc_times((entry & 15) << (4 * (entry >> 4)), step);
    }
    u32 factor = 1u << 31;
    for (u32 lane = 32; lane-- > 0;) {
        made.lanes[lane] = factor;
        for (u32 bit = 0; bit < 8 * CRC_UNIT; bit++) factor = crc_times_x(factor);
    }
    return made;
}

static __constant__ const CrcConstants CRC = crc_constants();

// A range of memory whose checksum is wanted: crate::ChecksumPiece.
struct ChecksumPiece {
    u64 address, len;
};

// The bytes of a range as they go into the state: zeros before it, which change nothing, and its first four bytes
// inverted, which is what a state of ones at the beginning amounts to.
static __device__ inline u32 crc_byte(const ChecksumPiece &piece, u64 address) {
    if (address < piece.address) return 0;
    const u8 byte = *(GLOBAL(u8) *)address;
    return address - piece.address < 4 ? byte ^ 0xFFu : byte;
}

static __device__ inline u32 crc_word(const ChecksumPiece &piece, u64 address) {
    u32 word = 0;
#pragma nounroll
    for (u32 at = 4; at-- > 0;) word = word << 8 | crc_byte(piece, address + at);
    return word;
}

// The 16 bytes at an aligned address behind the first four of a range.
static __device__ inline u32x4 crc_unit(u64 address) { return *(GLOBAL(u32x4) *)address; }

// The same anywhere, up to the end of the range.
static __device__ inline u32x4 crc_first_unit(const ChecksumPiece &piece, u64 address) {
    if (address >= piece.address + 4) return crc_unit(address);
    if (address + CRC_UNIT <= piece.address) return (u32x4)(0u);
    return (u32x4){crc_word(piece, address), crc_word(piece, address + 4), crc_word(piece, address + 8),
                   crc_word(piece, address + 12)};
}

// The constants' `steps`, each once for every lane: lane l finds all of its own in bank l.
static __shared__ u32 crc_table[32 * CRC_ENTRIES];

// The state after CRC_STEP bytes whose first four are those that `state` has taken in, and the rest zeros.
static __device__ inline u32 crc_step(u32 lane, u32 state) {
    u32 next = 0;
#pragma unroll
    for (u32 place = 0; place < 8; place++) {
        // An entry's number times 128 is where its copies begin; the lane's bits are free there.
        const u32 bits = place < 2 ? state << (7 - 4 * place) : state >> (4 * place - 7);
        const u32 at = (bits & (15 << 7)) | lane << 2;
        next ^= *(SHARED(u32) *)((SHARED(u8) *)crc_table + at + place * 16 * 128);
    }
    return next;
}

// What a lane has taken in, one step on, and its next unit. The four words of a unit are added up at the end.
static __device__ inline u32x4 crc_fold(u32 lane, u32x4 state, u32x4 unit) {
    return (u32x4){crc_step(lane, state.x), crc_step(lane, state.y), crc_step(lane, state.z),
                   crc_step(lane, state.w)} ^ unit;
}

static __device__ inline u32 crc_zeros(u32 state, u32 bits) {
#pragma nounroll
    for (u32 bit = 0; bit < bits; bit++) state = crc_times_x(state);
    return state;
}

// CRC-32C of the units in [start, end), both aligned, as a state. All lanes of the warp come here together and get it.
// Lane l takes every 32nd unit: the last one of a warp's step is that of lane 31, and the last step ends at `end`.
static __device__ inline u32 crc_units(const ChecksumPiece &piece, u32 lane, u64 start, u64 end) {
    const u64 steps = (end - start + CRC_STEP - 1) / CRC_STEP;
    u64 at = end - steps * CRC_STEP + lane * CRC_UNIT;
    u32x4 state = (u32x4)(0u);
    // The first four bytes lie in the first step or the second.
    u64 careful = steps < 2 ? steps : 2 + (steps - 2) % 4;
#pragma nounroll
    for (; careful > 0; careful--, at += CRC_STEP) state = crc_fold(lane, state, crc_first_unit(piece, at));
    for (; at < end; at += 4 * CRC_STEP) {
        const u32x4 a = crc_unit(at);
        const u32x4 b = crc_unit(at + CRC_STEP);
        const u32x4 c = crc_unit(at + 2 * CRC_STEP);
        const u32x4 d = crc_unit(at + 3 * CRC_STEP);
        state = crc_fold(lane, state, a);
        state = crc_fold(lane, state, b);
        state = crc_fold(lane, state, c);
        state = crc_fold(lane, state, d);
    }
    u32 whole = crc_zeros(state.x, 32);
    whole = crc_zeros(whole ^ state.y, 32);
    whole = crc_zeros(whole ^ state.z, 32);
    whole = crc_zeros(whole ^ state.w, 32);
    whole = crc_times(whole, CRC.lanes[lane]);
    for (u32 other = 16; other > 0; other >>= 1) whole ^= __nvvm_shfl_sync_bfly_i32(~0u, whole, other, 31);
    return whole;
}

// CRC-32C of `count` ranges, a warp for each. The block has 256 threads.
extern "C" __global__ LAUNCH_BOUNDS(256) void forebay_checksums(const ChecksumPiece *list, u32 *results, u32 count) {
    const u32 lane = THREAD & 31;
    const u32 index = BLOCK * (THREADS / 32) + THREAD / 32;
    ChecksumPiece piece = {0, 0};
    if (index < count) {
        GLOBAL(ChecksumPiece) *asked = (GLOBAL(ChecksumPiece) *)(u64)(list + index);
        piece = {asked->address, asked->len};
    }
    for (u32 at = THREAD; at < 32 * CRC_ENTRIES; at += THREADS) crc_table[at] = CRC.steps[at / 32];
    __syncthreads();
    if (index >= count) return;
    const u64 end = piece.address + piece.len;
    const u64 first = piece.address & ~(u64)(CRC_UNIT - 1);
    u64 tail = end & ~(u64)(CRC_UNIT - 1);
    u32 state = 0;
    if (tail > piece.address) {
        state = crc_units(piece, lane, first, tail);
    } else {
        tail = piece.address;
    }
#pragma nounroll
    for (; tail < end; tail++) state = crc_zeros(state ^ crc_byte(piece, tail), 8);
    // What a state of ones still has when it is longer than the range.
    if (piece.len < 4) state ^= ~0u >> (8 * piece.len);
    if (lane == 0) ((GLOBAL(u32) *)(u64)results)[index] = ~state;
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
