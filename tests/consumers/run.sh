#!/usr/bin/env bash
# Runs the programs of this folder on forebay's libcufile and prints what passed, and which way the bytes went.
#
#   tests/consumers/run.sh [WHEELS_DIR]
#
# Packages in WHEELS_DIR (fetch-wheels.sh) are installed into a temporary folder; the others must be there. Needs no
# network. Exit code: 0 nothing failed, 1 something did.
#
#   FOREBAY   the forebay binary             target/release/forebay
#   PYTHON    the interpreter                python3
#   SCRATCH   a folder for test files        the current directory
#   OUT_DIR   where outputs go               a temporary folder, removed at the end
#   LIMIT     seconds for one consumer       300
#   ONLY      consumers to run, with spaces  all
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
case ${1:-} in -h | --help) sed -n '2,14p' "${BASH_SOURCE[0]}" | cut -c3-; exit 2 ;; esac
FOREBAY=$(realpath -m "${FOREBAY:-$here/../../target/release/forebay}")
PYTHON=${PYTHON:-python3} LIMIT=${LIMIT:-300}
ONLY=${ONLY:-cuda_bindings cufile_python torch_gds kvikio_use fastsafetensors_use}
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

# The lines of a receipt that say which engine moved how much, in one.
engines() {
    sed -n 's/^  engine *\([a-z0-9]*\): \(.*\) in [0-9]* requests*:.*/\1 \2/p' "$1" | paste -sd, | sed 's/,/, /g'
}

failed=0
rows=("consumer|result|bytes by engine")
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
        cat "$receipt"
    fi
    rows+=("$name|$result|${bytes:--}")
done
echo
printf '%s\n' "${rows[@]}" | awk -F'|' '{ printf "%-22s %-10s %s\n", $1, $2, $3 }'
exit "$failed"
