#!/usr/bin/env bash
# Downloads the peers that forebay is compared with, as wheels, into a folder.
#
#   bench/fetch-peers.sh FOLDER [models]
#
# With `models`: what `bench/weights.py --transformers` and `--gguf` import instead.
#
# The wheels are for CPython 3.12 on x86-64 Linux and are meant to be carried to a GPU machine that reaches no
# package registry and already has numpy, torch, safetensors, packaging, cupy-cuda13x, cuda-pathfinder and
# nvidia-cufile. There:
#
#   python3 -m pip install --no-index --no-deps --no-compile --target PEERS FOLDER/*.whl
#   PYTHONPATH=PEERS python3 bench/kvikio_read.py FILE
#   PYTHONPATH=PEERS python3 bench/python/compare.py MODEL.safetensors
#
# PYTHON names the interpreter that runs pip (python3), PYTHON_VERSION the target's version (3.12).
set -euo pipefail

[ $# = 1 ] || { [ $# = 2 ] && [ "$2" = models ]; } || { echo "usage: bench/fetch-peers.sh FOLDER [models]" >&2; exit 2; }
python=${PYTHON:-python3}
folder=$1
# KvikIO and what it loads; the loaders of safetensors files; humanize is what runai-model-streamer imports.
# fastsafetensors declares typer too, but imports it nowhere.
wheels=(
    kvikio-cu13==26.10.0 libkvikio-cu13==26.10.0 rapids-logger==0.3.0
    fastsafetensors==0.5.0 instanttensor==0.2.2 runai-model-streamer==0.16.1 humanize==4.17.0
)
if [ "${2:-}" = models ]; then
    wheels=(
        transformers==5.23.0 accelerate==1.15.0 tokenizers==0.23.3 huggingface_hub==2.4.0 safetensors==0.8.0
        regex==2026.11.15 gguf==0.19.0 psutil==7.2.2 tqdm==4.70.1 PyYAML==6.0.3 packaging==26.3 filelock==4.2.11
        httpx2==2.16.2 httpcore2==2.16.2 anyio==4.16.0 h11==0.16.0 idna==3.20 certifi==2026.10.18 truststore==0.10.5
        sniffio==1.3.1 typing_extensions==4.16.0
    )
fi
limit_mib=45

platforms=()
for glibc in 2_39 2_34 2_31 2_28 2_27 2_24 2_17; do platforms+=(--platform "manylinux_${glibc}_x86_64"); done
platforms+=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64)

mkdir -p "$folder"
for wheel in "${wheels[@]}"; do
    echo "== $wheel"
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --python-version "${PYTHON_VERSION:-3.12}" --implementation cp "${platforms[@]}" -d "$folder" "$wheel"
done

size=$(du -cb "$folder"/*.whl | tail -n 1 | cut -f 1)
ls -l "$folder"
printf 'total: %s bytes\n' "$size"
if [ "$size" -gt $((limit_mib << 20)) ]; then
    echo "error: the wheels are larger than $limit_mib MiB together" >&2
    exit 1
fi
