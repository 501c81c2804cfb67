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
