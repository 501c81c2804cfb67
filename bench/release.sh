#!/usr/bin/env bash
# Measures every row of docs/benchmarks.md on a machine with a GPU, in parts of less than ten minutes each.
#
#   bench/release.sh BUILD OUT PART…      PART: loads programs disk training nfs
#   bench/page.py OUT…                    the page, from the records of one or more machines
#
# BUILD holds `forebay`, `libcufile.so`, `cufile_bench` and `python/` (the unpacked wheel); peers must be importable. REPEAT (3) is the
# number of processes of each subject, SECS (10) the seconds of a timed run, SCRATCH (./scratch) a folder on the disk, FIO a fio.
set -uo pipefail
[ $# -ge 3 ] || { sed -n '2,8p' "$0" | cut -c3- >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
build=$(realpath "$1") out=$2
shift 2
mkdir -p "$out" "${SCRATCH:=scratch}"
out=$(realpath "$out") scratch=$(realpath "$SCRATCH")
repeat=${REPEAT:-3} secs=${SECS:-10} fio=${FIO:-$here/bin/fio} python=${PYTHON:-python3}
export PYTHONPATH=$build/python${PYTHONPATH:+:$PYTHONPATH}
status=0

touch_rows() { # ROW CASES PEERS REPEAT SECS
    "$python" "$here/first_touch.py" "$1" --cases "$2" --peers "$3" --repeat "$4" --secs "$5" --forebay "$build" \
        --scratch "$scratch" --fio "$fio" --minutes 9 --out "$out/first_touch.jsonl" >>"$out/output.txt" || status=1
}

machine() {
    "$python" - "$build/forebay" <<'PY' >"$out/machine.json"
import json, os, platform, subprocess, sys, time
smi = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
name, driver = subprocess.run(smi, capture_output=True, text=True).stdout.strip().splitlines()[0].split(", ")
version = subprocess.run([sys.argv[1], "--version"], capture_output=True, text=True).stdout.strip()
print(json.dumps({"gpu": name, "driver": driver, "cpus": os.cpu_count(), "kernel": platform.release(),
                  "date": time.strftime("%F", time.gmtime()), "forebay": version, "commit": os.environ.get("COMMIT", "")}))
PY
}

loads() {
    touch_rows loads cat instanttensor-mmap,safetensors "$repeat" 1
    touch_rows loads tmpfs instanttensor-mmap "$repeat" 1
    touch_rows tensors "" safetensors "$repeat" 1
    "$python" "$here/python/gather.py" "$scratch/gather" --bytes 8e9 --repeats 3 --peers forebay,numpy \
        --results "$out/gather.jsonl" >>"$out/output.txt" || status=1
    rm -f "$scratch/gather"
}

programs() {
    touch_rows cufile "" nvidia "$repeat" 1
    touch_rows kvikio "1 threads,16 threads" posix "$repeat" 1
    touch_rows small cuFileRead nvidia "$repeat" 3
}

disk() {
    touch_rows cold-large "" fio "$repeat" "$secs"
    touch_rows cold "4K x 16,4K x 64,2 of 32" fio "$repeat" "$secs"
    touch_rows pinned-cpu read "" "$repeat" "$secs"
    touch_rows writes "" fio "$repeat" "$secs"
    "$python" "$here/python/save.py" "$scratch" /dev/shm --bytes 5.6e9 --peers forebay,safetensors --repeats "$repeat" \
        --passes 1 --fio "$fio" --results "$out/save.jsonl" >>"$out/output.txt" || status=1
}

training() {
    "$python" "$here/training_data.py" "$scratch/training" --rows tokens,images,volumes --subjects forebay,torch,kvikio --bytes 8e9 \
        --seconds "$secs" --repeats "$repeat" --until 540 --out "$out/training.jsonl" >>"$out/output.txt" || status=1
}

nfs() {
    "$python" "$here/nfs_tcp.py" --gpu --repeats "$repeat" --seconds 3 --connections 1 8 --json "$out/nfs.json" \
        >>"$out/output.txt" || status=1
}

machine
for part in "$@"; do
    begun=$SECONDS
    "$part"
    echo "== $part: $((SECONDS - begun)) s"
done
exit "$status"
