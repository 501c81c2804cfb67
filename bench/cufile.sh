#!/usr/bin/env bash
# Two cuFile libraries doing the same work by the same program: forebay's and NVIDIA's.
#
#   bench/cufile.sh OURS THEIRS FILE [SECTION ...]
#
# OURS and THEIRS are the libraries (libcufile.so.0, or their folders; - leaves one out), FILE is a test file on the
# disk to measure, made if need be. Sections (default: all):
#
#   sync16m sync1m        cuFileRead of a warm file: 16 MiB, 1 thread; 1 MiB, 16 threads
#   small1 small16        cuFileRead of a warm file: 4 KiB at random offsets, 1 and 16 threads
#   batch1 batch4         batches of 128 × 4 KiB at random offsets, warm: one and four in flight
#   batchdirect           batches of 128 × 64 KiB from the disk, O_DIRECT: one and four in flight
#   async                 cuFileReadAsync of 4 KiB, warm, every byte checked: 64 and 2048 in flight
#   direct1m              cuFileRead from the disk, O_DIRECT: 1 MiB, 4 threads
#   open                  cuFileDriverOpen, registration and the first 1 MiB read in a fresh process
#
# The libraries alternate, every figure is the median of REPEAT runs, every run has a time limit. One record a run goes
# to $OUT_DIR/cufile.jsonl (a second call adds to it), a table of that file to $OUT_DIR/cufile.md and standard output.
#
#   BENCH    the program    target/release/examples/cufile_bench (cargo build --release -p forebay-cufile --examples)
#   OUT_DIR  results        bench/results     SIZE   of FILE              4G
#   SECS     of timed runs  2                 REPEAT runs of everything   5
#   VERIFY_SECS of the untimed pass in which bytes are compared 2
#   LIMIT    seconds until a run is killed 90, HANG seconds without progress that count as a hang 20
#   THEIRS_ENV   NAME=VALUE words for THEIRS instead of what bench/nvidia-libcufile.sh says
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

all=(sync16m sync1m small1 small16 batch1 batch4 batchdirect async direct1m open)
[ $# -ge 3 ] || { sed -n '2,25p' "${BASH_SOURCE[0]}" | cut -c3- >&2; exit 2; }
library() {
    [ "$1" = - ] && { echo -; return; }
    [ -d "$1" ] && set -- "$1/libcufile.so.0"
    [ -e "$1" ] || { echo "error: no such library (path=$1)" >&2; return 1; }
    realpath "$1"
}
ours=$(library "$1") && theirs=$(library "$2") || exit 2
file=$3
shift 3
[ $# -gt 0 ] || set -- "${all[@]}"
for section in "$@"; do
    [[ " ${all[*]} " == *" $section "* ]] || { echo "error: no section '$section' (${all[*]})" >&2; exit 2; }
done

BENCH=$(realpath -m "${BENCH:-$here/../target/release/examples/cufile_bench}")
OUT_DIR=${OUT_DIR:-$here/results} PYTHON=${PYTHON:-python3}
SIZE=${SIZE:-4G} SECS=${SECS:-2} REPEAT=${REPEAT:-5} LIMIT=${LIMIT:-90} HANG=${HANG:-20}
VERIFY_SECS=${VERIFY_SECS:-2}
[ -x "$BENCH" ] || {
    echo "error: no program (path=$BENCH)" >&2
    echo "hint: cargo build --release -p forebay-cufile --examples" >&2
    exit 2
}
mkdir -p "$OUT_DIR"
results=$OUT_DIR/cufile.jsonl
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

theirs_env=()
if [ "$theirs" != - ]; then
    if [ -n "${THEIRS_ENV+set}" ]; then
        read -ra theirs_env <<<"$THEIRS_ENV"
    else
        said=$("$here/nvidia-libcufile.sh" "$(dirname "$theirs")" "$file") || exit 1
        mapfile -t theirs_env < <(sed -n 's/^export //p' <<<"$said")
    fi
fi

say() { printf '== %s\n' "$*"; }
say "the file: $SIZE of the pattern in $file"
timeout -s KILL 600 "$BENCH" --file "$file" --make --size "$SIZE" || exit 1

# one SUBJECT LIBRARY SECTION CASE REPEAT FLAGS: one run, one record
one() {
    local subject=$1 library=$2 section=$3 case=$4 repeat=$5 status begun
    shift 5
    local words=(timeout -s KILL "$LIMIT" "$BENCH" --lib "$library" --file "$file" --size "$SIZE" --hang-limit "$HANG" "$@")
    [ "$subject" = forebay ] || words=(env ${theirs_env[@]+"${theirs_env[@]}"} "${words[@]}")
    begun=$(date +%s.%N)
    (cd "$scratch" && "${words[@]}") >"$scratch/out" 2>"$scratch/err"
    status=$?
    printf '   %-8s %s %s #%s: ' "$subject" "$section" "$case" "$repeat"
    [ "$status" = 137 ] && echo "killed after $LIMIT s" || grep -v '^warn' "$scratch/err" | head -n 2 | cut -d: -f2- | paste -sd'|'
    "$PYTHON" - "$results" "$subject" "$section" "$case" "$repeat" "$status" "$begun" "$scratch" "${words[@]}" <<'PY'
import json, sys, time

results, subject, section, case, repeat, status, begun, scratch, *command = sys.argv[1:]
lines = open(f"{scratch}/out", errors="replace").read().splitlines()
reports = [line for line in lines if line.startswith("{")]
record = {"section": section, "case": case, "subject": subject, "repeat": int(repeat), "status": int(status),
          "wall_s": time.time() - float(begun), "command": command,
          "result": json.loads(reports[-1]) if reports else None,
          "said": open(f"{scratch}/err", errors="replace").read()[-2000:] if status != "0" else None}
with open(results, "a") as out:
    out.write(json.dumps(record) + "\n")
PY
}

# row SECTION CASE FLAGS: both libraries in turn
row() {
    local r section=$1 case=$2
    shift 2
    for r in $(seq "$REPEAT"); do
        [ "$ours" = - ] || one forebay "$ours" "$section" "$case" "$r" "$@"
        [ "$theirs" = - ] || one nvidia "$theirs" "$section" "$case" "$r" "$@"
    done
}

check=(--verify --verify-secs "$VERIFY_SECS")
small=(--io 4K --random --warm --secs "$SECS" --passes 3)
for section in "$@"; do
    say "$section"
    case $section in
    sync16m) row sync16m "warm 16M x 1" --io 16M --threads 1 --warm --passes 5 "${check[@]}" ;;
    sync1m) row sync1m "warm 1M x 16" --io 1M --threads 16 --warm --passes 5 "${check[@]}" ;;
    small1) row small1 "warm 4K x 1" "${small[@]}" --threads 1 ;;
    small16) row small16 "warm 4K x 16" "${small[@]}" --threads 16 ;;
    batch1) row batch1 "warm 128 x 4K, 1 in flight" --api batch "${small[@]}" --batch 128 --inflight 1 ;;
    batch4) row batch4 "warm 128 x 4K, 4 in flight" --api batch "${small[@]}" --batch 128 --inflight 4 ;;
    batchdirect)
        for flight in 1 4; do
            row batchdirect "disk 128 x 64K, $flight in flight" --api batch --io 64K --batch 128 --inflight $flight \
                --direct --drop --passes 2
        done
        ;;
    async)
        for flight in 64 2048; do
            row async "warm 4K, $flight in flight" --api async "${small[@]}" --inflight $flight "${check[@]}"
        done
        ;;
    direct1m) row direct1m "disk 1M x 4" --io 1M --threads 4 --direct --drop --passes 2 ;;
    open) row open "first 1M" --api open --io 1M --warm ;;
    esac
done

"$PYTHON" - "$results" <<'PY' | tee "$OUT_DIR/cufile.md"
import json, math, statistics, sys

def figure(value):
    if value is None:
        return "–"
    digits = 0 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}"

def at(result, *path):
    for step in path:
        result = result.get(step) if isinstance(result, dict) else None
    return result

def median(runs, *path):
    values = [value for value in (at(run["result"], *path) for run in runs) if isinstance(value, (int, float))]
    return statistics.median(values) if values else None

def troubles(runs):
    words = []
    for status, name in ((137, "killed"), (139, "crashed"), (134, "aborted")):
        count = sum(run["status"] == status for run in runs)
        if count:
            words.append(f"{name} {count}×")
    hung = sum(bool(at(run["result"], "hung")) for run in runs)
    errors = sum(at(run["result"], "error_count") or 0 for run in runs)
    wrong = sum(at(run["result"], "wrong_bytes") or 0 for run in runs)
    words += [f"hung {hung}×"] * bool(hung) + [f"{errors} errors"] * bool(errors) + [f"{wrong} wrong bytes"] * bool(wrong)
    silent = sum(run["status"] != 0 and run["result"] is None for run in runs)
    words += [f"no report {silent}×"] * bool(silent and not words)
    return ", ".join(words) or "none"

groups = {}
for line in open(sys.argv[1]):
    run = json.loads(line)
    groups.setdefault((run["section"], run["case"]), {}).setdefault(run["subject"], []).append(run)

transfers = [key for key in groups if key[0] != "open"]
if transfers:
    print("| work | library | first GB/s | later GB/s | later IOPS | CPU s/GB first | later | µs p50 | p99 "
          "| submit µs p50 | p99 | wrong | runs |")
    print("|---|---|" + "---:|" * 9 + "---|---:|")
for key in transfers:
    for subject, runs in groups[key].items():
        cells = [median(runs, "first", "gb_per_s"), median(runs, "later", "gb_per_s"), median(runs, "later", "iops"),
                 median(runs, "first", "cpu_s_per_gb"), median(runs, "later", "cpu_s_per_gb")]
        cells += [median(runs, "later", name, which) for name in ("latency_us", "submit_us") for which in ("p50", "p99")]
        print(f"| {key[1]} | {subject} | " + " | ".join(map(figure, cells)) + f" | {troubles(runs)} | {len(runs)} |")
opens = [key for key in groups if key[0] == "open"]
if opens:
    steps = ("load", "driver_open", "handle_register", "first_io", "sum", "close")
    print("\n| fresh process, ms | library | load | driver open | register | first read | sum without load | close "
          "| wrong | runs |")
    print("|---|---|" + "---:|" * 6 + "---|---:|")
for key in opens:
    for subject, runs in groups[key].items():
        cells = [median(runs, "setup_ms", step) for step in steps]
        print(f"| {key[1]} | {subject} | " + " | ".join(map(figure, cells)) + f" | {troubles(runs)} | {len(runs)} |")
PY
