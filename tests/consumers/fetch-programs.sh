#!/usr/bin/env bash
# Makes the compiled programs of consumers, for a machine that has a GPU and no network.
#
#   tests/consumers/fetch-programs.sh FOLDER
#
# Then, there: tests/consumers/run.sh WHEELS_DIR FOLDER. Makes: fio with its engine for cuFile, from Debian's
# source package, against the headers and libraries of CUDA's wheels, and the CUDA runtime that it is linked with.
# Other programs come from their projects' own builds; where they are in FOLDER, they run too (a line `NAME VERSION` in
# FOLDER/versions is for the table):
#
#   BASIC_IO_EXAMPLE   of rapidsai/kvikio    as built with libkvikio-cu13 of fetch-wheels.sh
#   cucim_tests        of rapidsai/cucim
#   nixl_gds_test      of ai-dynamo/nixl     as built with nixl-cu13 of fetch-wheels.sh
set -euo pipefail
[ $# = 1 ] || { sed -n '2,15p' "${BASH_SOURCE[0]}" | cut -c3-; exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$1/lib"
folder=$(realpath "$1")
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT

python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: -d "$temporary" \
    --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 \
    nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88 nvidia-cufile==1.15.1.6
for wheel in "$temporary"/*.whl; do python3 -m zipfile -e "$wheel" "$temporary"; done
cuda=$temporary/nvidia/cu13
for name in cudart.so.13 cufile.so.0; do ln -s "lib$name" "$cuda/lib/lib${name%.so.*}.so"; done
# fio's build asks for the driver's library, too, and uses nothing of it.
echo 'int cuInit(unsigned flags) { return (int)flags; }' |
    cc -shared -fPIC -x c - -Wl,-soname,libcuda.so.1 -o "$cuda/lib/libcuda.so"

install -m 755 "$cuda/lib/libcudart.so.13" "$folder/lib"
CUDA=$cuda OUT=$folder/fio "$here/../../bench/build-fio.sh"
du -sh "$folder"
