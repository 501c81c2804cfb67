/* Statistics of programs that were built against 1.19 or later, which say so: the structures end where those of the version
   that was said end, and no byte behind is written. */
#include "check.h"
#include <stdlib.h>
#include <string.h>

#define GUARD 0x5A
#define CLASSES 32

static unsigned char found[8192];

static uint64_t word(size_t at) {
    uint64_t value;
    memcpy(&value, found + at, sizeof value);
    return value;
}

static void filled(size_t size, CUfileError_t result) {
    OK(result);
    for (size_t i = size; i < sizeof found; i++) EQ(found[i], GUARD);
}

int main(void) {
    const char *said = getenv("FOREBAY_CUFILE_VERSION");
    int is_long = said && strcmp(said, "1.19") == 0;
    size_t level1 = is_long ? 624 : 512;
    int version = 0;
    OK(cuFileGetVersion(&version));
    EQ(version, is_long ? 1190 : 1150);
    OK(cuFileDriverOpen());
    OK(cuFileSetStatsLevel(3));
    OK(cuFileStatsStart());
    memset(found, GUARD, sizeof found);
    filled(level1, cuFileGetStatsL1((CUfileStatsLevel1_t *)found));
    if (is_long)
        for (size_t at = 512; at < 624; at += 8) EQ(word(at), 0);
    memset(found, GUARD, sizeof found);
    filled(level1 + 2 * CLASSES * 8, cuFileGetStatsL2((CUfileStatsLevel2_t *)found));
    memset(found, GUARD, sizeof found);
    filled(level1 + 2 * CLASSES * 8 + 8 + 16 * 248, cuFileGetStatsL3((CUfileStatsLevel3_t *)found));
    OK(cuFileDriverClose());
    return 0;
}
