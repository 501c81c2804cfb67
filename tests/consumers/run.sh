#!/usr/bin/env bash
# Runs the programs of this folder on forebay's libcufile and prints what passed, and which way the bytes went.
#
#   tests/consumers/run.sh [WHEELS_DIR [PROGRAMS_DIR]]
#
# Packages in WHEELS_DIR (fetch-wheels.sh) are installed into a temporary folder; the others must be there. Compiled
# programs are taken from PROGRAMS_DIR (fetch-programs.sh) and from PATH. What is not there is skipped. Needs no network.
# Exit code: 0 nothing failed, 1 something did.
#
#   FOREBAY   the forebay binary             target/release/forebay
#   PYTHON    the interpreter                python3
#   SCRATCH   a folder for test files        the current directory
#   OUT_DIR   where outputs go               a temporary folder, removed at the end
#   LIMIT     seconds for one consumer       300
#   ONLY      consumers to run, with spaces  all
#   SOFTWARE  libfake_cuda.so: runs compiled programs on the software GPU (`cargo build -p fake-cuda`)
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
case ${1:-} in -h | --help) sed -n '2,17p' "${BASH_SOURCE[0]}" | cut -c3-; exit 2 ;; esac
FOREBAY=$(realpath -m "${FOREBAY:-$here/../../target/release/forebay}")
PYTHON=${PYTHON:-python3} LIMIT=${LIMIT:-300}
programs="fio_jobs nixl_gds_test kvikio_example cucim_test"
ONLY=${ONLY:-cuda_bindings cufile_python torch_gds kvikio_use fastsafetensors_use nixl_use $programs}
[ -x "$FOREBAY" ] || { echo "error: no binary at $FOREBAY" >&2; echo "hint: make release library" >&2; exit 2; }

temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
trap 'exit 130' INT TERM
outputs=${OUT_DIR:-$temporary/out}
mkdir -p "$outputs"
export CONSUMERS_DIR=${SCRATCH:-$PWD} PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1

if [ -n "${1:-}" ]; then
    "$PYTHON" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --disable-pip-version-check \
        --target "$temporary/site" "$1"/*.whl || { echo "error: the wheels in $1 cannot be installed" >&2; exit 2; }
    export PYTHONPATH="$temporary/site${PYTHONPATH:+:$PYTHONPATH}"
fi

[ -z "${2:-}" ] || CONSUMERS_PROGRAMS=$(realpath "$2")
export CONSUMERS_PROGRAMS=${CONSUMERS_PROGRAMS:-}

if [ -n "${SOFTWARE:-}" ]; then
    "$here/software/build.sh" "$SOFTWARE" "$temporary/software" || exit 2
    export LD_LIBRARY_PATH="$temporary/software${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi

# The lines of a receipt that say which engine moved how much, in one. The first part of it is the sum of all processes.
engines() {
    awk '/^receipt/ { parts++ } parts == 1' "$1" |
        sed -n 's/^  engine *\([a-z0-9]*\): \(.*\) in [0-9]* requests*:.*/\1 \2/p' | paste -sd, | sed 's/,/, /g'
}

failed=0
rows=("consumer|version|result|bytes by engine" "---|---|---|---")
for name in $ONLY; do
    output=$outputs/$name.txt receipt=$outputs/$name.receipt.txt
    timeout -k 10 "$LIMIT" "$FOREBAY" run --receipt -- "$PYTHON" "$here/$name.py" >"$output" 2>"$receipt"
    code=$?
    bytes=$(engines "$receipt")
    passed=$(grep -c '^ok ' "$output")
    case $code in
        0) result="passed $passed" ;;
        77) result="skipped: $(sed -n 's/^skipped: //p' "$output")" ;;
        124 | 137) result="FAILED: no end after $LIMIT s" ;;
        *) result="FAILED $(grep -c '^FAILED' "$output"), passed $passed" ;;
    esac
    # Passed without a byte of ours proves nothing.
    if [ "$code" = 0 ] && [ -z "$bytes" ]; then result="FAILED: passed, but no byte went through forebay" code=1; fi
    if [ "$code" != 0 ] && [ "$code" != 77 ]; then
        failed=1
        echo "== $name (exit code $code)"
        grep -v '^ok ' "$output"
        head -n 25 "$receipt"
    fi
    version=$(sed -n 's/^version //p' "$output" | head -n 1)
    rows+=("$name|${version:--}|$result|${bytes:--}")
done
echo
printf '%s\n' "${rows[@]}" | sed 's/|/ | /g; s/^/| /; s/$/ |/'
exit "$failed"
