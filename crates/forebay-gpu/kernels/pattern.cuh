// The test pattern: filled in, and compared.

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
