#!/usr/bin/env bash
# Makes libcuda.so.1 and libcudart.so.13 of the software GPU, for programs of the CUDA runtime.
#
#   tests/consumers/software/build.sh LIBFAKE_CUDA FOLDER        LD_LIBRARY_PATH=FOLDER ./program
#
# LIBFAKE_CUDA is target/debug/libfake_cuda.so (`cargo build -p fake-cuda`).
set -euo pipefail
[ $# = 2 ] || { sed -n '2,6p' "${BASH_SOURCE[0]}" | cut -c3-; exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$2"
cp "$1" "$2/libcuda.so.1"
cd "$2"
printf 'libcudart.so.13 { global: cuda*; local: *; };\n' >cudart.map
"${CC:-cc}" -O1 -Wall -Wextra -Werror -shared -fPIC -L. "-Wl,-rpath,\$ORIGIN" -Wl,-soname,libcudart.so.13 \
    -Wl,--version-script=cudart.map -o libcudart.so.13 "$here/cudart.c" -l:libcuda.so.1
