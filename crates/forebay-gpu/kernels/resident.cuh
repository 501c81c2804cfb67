// Copies by mailboxes: the resident kernel.

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
