// forebay's kernels: scatter and gather of pieces, copies by mailboxes, checksums, and the test pattern.
//
// Built by build.sh with clang alone: no CUDA toolkit, so no CUDA headers; what they would define stands in base.cuh.
// Host memory that is read here is pinned and rewritten between launches: loads are plain ones, never through the
// read-only cache, so no `__ldg` and no `const __restrict__` parameters.

#include "base.cuh"
#include "copy.cuh"
#include "resident.cuh"
#include "gather.cuh"
#include "checksums.cuh"
#include "pattern.cuh"
