#!/usr/bin/env bash
# Fetches the Python packages of consumers as wheels, for a machine that has a GPU and no network.
#
#   tests/consumers/fetch-wheels.sh FOLDER [PYTHON_VERSION]        PYTHON_VERSION: of that machine, 3.12
#
# Then, there: tests/consumers/run.sh FOLDER [PROGRAMS_DIR]. cuda-bindings, CuPy, numpy, pytest and PyTorch must be on it
# already.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,7p' "${BASH_SOURCE[0]}" | cut -c3-; exit 2; }
folder=$1 version=${2:-3.12}

fetch() {
    local platforms=()
    for glibc in 17 24 27 28; do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done
    python3 -m pip download --quiet --no-deps --only-binary=:all: --implementation cp --python-version "$version" \
        "${platforms[@]}" --platform manylinux2014_x86_64 -d "$folder" "$@"
}

# What a wheel has and no script here uses is left out: a pattern of names.
slim() {
    python3 - "$1" "$2" <<'END'
import os, re, sys, zipfile

path, unused = sys.argv[1:]
with zipfile.ZipFile(path) as wheel, zipfile.ZipFile(path + ".new", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as slim:
    for item in wheel.infolist():
        if not re.search(unused, item.filename):
            slim.writestr(item, wheel.read(item), compresslevel=9)
os.replace(path + ".new", path)
END
}

fetch kvikio-cu13==26.10.0 libkvikio-cu13==26.10.0 rapids-logger==0.3.0
fetch cufile-python==0.2.0
fetch fastsafetensors==0.5.0
fetch nixl-cu13==1.4.0
slim "$folder"/nixl_cu13-*.whl \
    '^nixl_ep|\.data/|\.scripts/|\.libs/nixl/|plugins/lib(?!plugin_GDS)|libs/(ucx|lib(aio|aws|azure|curl|gusli|ibverbs|mlx5|nl-|numa|s2n|uc[mpst]|xml2|zstd))'
du -sh "$folder"
