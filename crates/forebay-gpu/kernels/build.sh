#!/bin/sh
# Builds forebay.ptx from forebay.cu. Needs only Debian's clang-14 (apt-get install clang-14), no CUDA toolkit.
#   build.sh           writes forebay.ptx
#   build.sh --check   fails if the checked-in forebay.ptx differs from a rebuild
# Another version of clang may be named in CLANG; its PTX is as good but differs in register names, so --check
# holds for clang-14 alone.
set -eu
cd "$(dirname "$0")"

clang=${CLANG:-clang-14}
command -v "$clang" >/dev/null || { echo "build.sh: $clang not found; hint: apt-get install clang-14" >&2; exit 1; }

out=$(mktemp)
trap 'rm -f "$out"' EXIT
# PTX 6.3 is what drivers from 410 on take; the GPU's own code is made from it when it is loaded.
"$clang" -x cuda --cuda-device-only -nocudainc -nocudalib --cuda-gpu-arch=sm_70 \
    -Xclang -target-feature -Xclang +ptx63 -std=c++17 -O3 -S -Wall -Wextra -Werror \
    -Wno-unknown-cuda-version -o "$out" forebay.cu

version=$(sed -n 's/^\.version //p' "$out")
case $version in
    6.* | 7.0) ;;
    *) echo "build.sh: PTX version $version is too new for old drivers" >&2; exit 1 ;;
esac

if [ "${1:-}" = --check ]; then
    diff -u forebay.ptx "$out" || { echo "build.sh: forebay.ptx is stale; hint: run build.sh" >&2; exit 1; }
    echo "forebay.ptx is what forebay.cu gives"
else
    cp "$out" forebay.ptx
    chmod 644 forebay.ptx
    echo "wrote forebay.ptx (PTX $version)"
fi
