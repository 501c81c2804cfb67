#!/usr/bin/env bash
# Comparison tables: forebay, the same work as raw calls, and public peers, on one machine.
#
#   bench/table.sh [SECTION ...]      sections: warm rand cold coldrand write latency types container local
#                                               mapped mrand files vendor
#
# Subjects alternate (A B C A B C ...), every figure is the median of REPEAT runs, every command has a time limit.
# Raw results go to $OUT_DIR/results.jsonl (one record a run, with its command), the tables to $OUT_DIR/table.md and
# to standard output. A second call with other sections adds to the same files. A subject that is missing (no fio, no
# KvikIO) is left out, and said to be.
#
#   FOREBAY   the release binary               target/release/forebay
#   FIO       a fio binary                     bench/bin/fio, see bench/build-fio.sh
#   PYTHON    an interpreter with KvikIO       python3, see bench/fetch-peers.sh
#   SCRATCH   a folder on the disk to measure  a new one below the current directory, removed at the end
#   TMPFS     a folder on a tmpfs              /dev/shm
#   OUT_DIR   where results go                 bench/results
#   SIZE      the test file                    4G      WRITE_SIZE  written files      4G
#   SECS      one measurement                  3       REPEAT      repeats            5
#   LIMIT     seconds until a run is killed    90      DEVICE      gdsio's -d         0
#   WARM_WORKERS "1 4 8 16" · RAND_LANES "1 8" · TYPES_CPU 1 · CONTAINER_USER 65534
#   KVIKIO_THREADS "1 4 16" · GATHER_PIECES 1048576 · FILES 200000 · FILE_SIZE 64K · FILE_WORKERS "1 8"
#   FILES_DIR a folder for those files, kept   a new one below TMPFS, removed at the end
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

absolute() { case $1 in */*) realpath -m "$1" ;; *) command -v "$1" || printf '%s\n' "$1" ;; esac; }
FOREBAY=$(absolute "${FOREBAY:-$here/../target/release/forebay}")
FIO=$(absolute "${FIO:-$here/bin/fio}")
PYTHON=${PYTHON:-python3}
OUT_DIR=${OUT_DIR:-$here/results}
TMPFS=${TMPFS:-/dev/shm}
SIZE=${SIZE:-4G} WRITE_SIZE=${WRITE_SIZE:-4G} SECS=${SECS:-3} REPEAT=${REPEAT:-5} LIMIT=${LIMIT:-90} DEVICE=${DEVICE:-0}
WARM_WORKERS=${WARM_WORKERS:-1 4 8 16} RAND_LANES=${RAND_LANES:-1 8} TYPES_CPU=${TYPES_CPU:-1}
CONTAINER_USER=${CONTAINER_USER:-65534}
KVIKIO_THREADS=${KVIKIO_THREADS:-1 4 16} GATHER_PIECES=${GATHER_PIECES:-1048576}
FILES=${FILES:-200000} FILE_SIZE=${FILE_SIZE:-64K} FILE_WORKERS=${FILE_WORKERS:-1 8}

all=(warm rand cold coldrand write latency types container local mapped mrand files vendor)
[ $# -gt 0 ] || { sed -n '2,6p' "${BASH_SOURCE[0]}" | cut -c3-; exit 2; }
for section in "$@"; do
    [[ " ${all[*]} " == *" $section "* ]] || { echo "error: no section '$section' (${all[*]})" >&2; exit 2; }
done
[ -x "$FOREBAY" ] || { echo "error: no binary at $FOREBAY" >&2; echo "hint: make release" >&2; exit 2; }

if [ -n "${SCRATCH:-}" ]; then mkdir -p "$SCRATCH"; else SCRATCH=$(mktemp -d "$PWD/forebay-bench.XXXXXX"); made=$SCRATCH; fi
mkdir -p "$OUT_DIR"
results=$OUT_DIR/results.jsonl
file=$SCRATCH/read.dat
json=$(mktemp -d)
chmod 755 "$SCRATCH"
shm=$(mktemp -d "$TMPFS/forebay-bench.XXXXXX")
cleanup() { rm -rf "$json" "$shm" "$SCRATCH/write.dat"; [ -z "${made:-}" ] || rm -rf "$made"; }
trap cleanup EXIT
trap 'exit 130' INT TERM

say() { printf '== %s\n' "$*"; }
skip() { printf '   left out: %s\n' "$*"; }
has_fio() { [ -x "$FIO" ]; }
has_kvikio() { [ -n "${kvikio_works:=$("$PYTHON" -c 'import cupy, kvikio; cupy.cuda.Device(0).use(); print(1)' 2>/dev/null || echo 0)}" ] && [ "$kvikio_works" = 1 ]; }

# The test file: written once, not sparse, not compressible.
need_file() {
    local want
    want=$(numfmt --from=iec "$SIZE")
    [ "$(stat -c %s "$file" 2>/dev/null || echo 0)" = "$want" ] && return
    say "writing $SIZE to $file"
    "$PYTHON" - "$file" "$want" <<'PY' || exit 1
import os, sys
block, left = os.urandom(16 << 20), int(sys.argv[2])
with open(sys.argv[1], "wb", buffering=0) as f:
    while left:
        left -= f.write(block[:left])
    os.fsync(f.fileno())
PY
    chmod 644 "$file"
}

# m SECTION CASE SUBJECT REPEAT KIND [measure options] -- COMMAND: one measured run
m() {
    local section=$1 case=$2 subject=$3 repeat=$4 kind=$5
    shift 5
    timeout -s KILL $((LIMIT + 60)) "$PYTHON" "$here/measure.py" --results "$results" --limit "$LIMIT" --section "$section" \
        --case "$case" --subject "$subject" --repeat "$repeat" --kind "$kind" "$@"
}
# f SECTION CASE SUBJECT REPEAT [measure options] -- BENCH-FLAGS: forebay on $target
f() {
    local head=("$1" "$2" "$3" "$4") options=()
    shift 4
    while [ "$1" != -- ]; do options+=("$1"); shift; done
    shift
    m "${head[@]}" forebay --json "$json/run.json" ${options[@]+"${options[@]}"} -- ${wrap[@]+"${wrap[@]}"} \
        "$FOREBAY" bench -f "${target:-$file}" -d "$DEVICE" --json "$json/run.json" "$@"
    rm -f "$json/run.json"
}
# d SECTION CASE SUBJECT REPEAT -- BENCH-FLAGS: forebay on every file of $files_dir
d() {
    m "$1" "$2" "$3" "$4" forebay --json "$json/run.json" -- "$FOREBAY" bench --files "$files_dir" -d "$DEVICE" \
        --json "$json/run.json" "${@:6}"
    rm -f "$json/run.json"
}
# io SECTION CASE SUBJECT REPEAT [measure options] -- FIO-FLAGS: fio on $target
io() {
    local head=("$1" "$2" "$3" "$4") options=()
    shift 4
    while [ "$1" != -- ]; do options+=("$1"); shift; done
    shift
    m "${head[@]}" fio ${options[@]+"${options[@]}"} -- ${wrap[@]+"${wrap[@]}"} \
        "$FIO" --name=peer --filename="${target:-$file}" --thread --output-format=json --norandommap \
        --randrepeat=0 --time_based --runtime="$SECS" --size="$SIZE" "$@"
}
wrap=() target=
# Jobs of fio that each read or write their own part of a file, as our workers do.
parts() { local part=$(($(numfmt --from=iec "$1") / $2)); printf '%s ' --numjobs="$2" --size="$part" --offset_increment="$part"; }

# One whole file, warm, to the GPU: 4 MiB calls from N workers, and one call for all of it.
warm() {
    need_file
    local r w first=--warm
    for w in $WARM_WORKERS; do
        for r in $(seq "$REPEAT"); do
            f warm "4M x $w" forebay "$r" ${first:+$first "$file"} -- -w "$w" -s "$SIZE" -i 4M -x 0 -I 0 -T "$SECS" --engine staged
            first=
            f warm "4M x $w" bare "$r" -- -w "$w" -s "$SIZE" -i 4M -x 0 -I 0 -T "$SECS" --bare
            if has_kvikio; then
                m warm "4M x $w" kvikio "$r" kvikio -- "$PYTHON" "$here/kvikio_read.py" "$file" --threads "$w" --task-size 4M --repeat 3
                m warm "4M x $w" kvikio-16M "$r" kvikio -- "$PYTHON" "$here/kvikio_read.py" "$file" --threads "$w" --task-size 16M --repeat 3
            fi
        done
    done
    for r in $(seq "$REPEAT"); do
        f warm "one call" forebay "$r" -- -w 1 -s "$SIZE" -i "$SIZE" -x 0 -I 0 -T "$SECS" --engine staged
    done
    has_kvikio || skip "KvikIO (bench/fetch-peers.sh says how to bring it)"
}

# 4 KiB random reads from the page cache, batches of 256, two in flight for each lane.
rand() {
    need_file
    local r lanes first=--warm
    for lanes in $RAND_LANES; do
        for r in $(seq "$REPEAT"); do
            f rand "4K B256 lanes $lanes" forebay "$r" ${first:+$first "$file"} -- -s "$SIZE" -i 4K -x 6 -B 256 --batches $((2 * lanes)) -I 2 -T "$SECS" --lanes "$lanes"
            first=
            # Type 4 is a pread through the page cache and a copy for each piece.
            f rand "4K B256 lanes $lanes" "pread + copy" "$r" -- -w "$lanes" -s "$SIZE" -i 4K -x 4 -I 2 -T "$SECS"
            ! has_kvikio || m rand "4K B256 lanes $lanes" kvikio "$r" kvikio -- \
                "$PYTHON" "$here/kvikio_read.py" "$file" --mode rand --threads "$lanes" --repeat 3
        done
    done
}

# Large reads from the disk.
cold() {
    need_file
    local r
    for r in $(seq "$REPEAT"); do
        f cold "1M x 4" forebay "$r" --drop "$file" -- -w 4 -s "$SIZE" -i 1M -x 0 -I 0 -T "$SECS" --drop-cache
        ! has_fio || io cold "1M x 4" fio "$r" --drop "$file" -- --rw=read --bs=1M --direct=1 --ioengine=io_uring --iodepth=1 --readonly $(parts "$SIZE" 4)
        f cold "one call" forebay "$r" --drop "$file" -- -w 1 -s "$SIZE" -i 1G -x 0 -I 0 -T "$SECS" --drop-cache
        ! has_fio || io cold "one call" fio "$r" --drop "$file" -- --rw=read --bs=1M --direct=1 --ioengine=io_uring --iodepth=16 --readonly
    done
    has_fio || skip "fio (bench/build-fio.sh)"
}

# 4 KiB random reads from the disk, depth 64.
coldrand() {
    need_file
    local r
    for r in $(seq "$REPEAT"); do
        f coldrand "4K depth 64" "forebay batches" "$r" --drop "$file" -- -s "$SIZE" -i 4K -x 6 -B 32 --batches 2 -I 2 -T "$SECS" --cache bypass --drop-cache
        f coldrand "4K depth 64" "forebay threads" "$r" --drop "$file" -- -w 64 -s "$SIZE" -i 4K -x 0 -I 2 -T "$SECS" --cache bypass --drop-cache
        ! has_fio || io coldrand "4K depth 64" fio "$r" --drop "$file" -- --rw=randread --bs=4k --direct=1 --ioengine=io_uring --iodepth=64 --readonly
    done
    has_fio || skip "fio (bench/build-fio.sh)"
}

# From the GPU to pages of a tmpfs that exist, to a new tmpfs file, and to the disk.
write() {
    local r first=1
    for r in $(seq "$REPEAT"); do
        target=$shm/over.dat
        [ -n "$first" ] && head -c "$WRITE_SIZE" /dev/zero >"$target"
        first=
        f write "tmpfs overwrite" forebay "$r" -- -w 8 -s "$WRITE_SIZE" -i 4M -x 0 -I 1 -T "$SECS" --overwrite
        f write "tmpfs overwrite" "forebay, one call" "$r" -- -w 1 -s "$WRITE_SIZE" -i "$WRITE_SIZE" -x 0 -I 1 -T "$SECS" --overwrite
        f write "tmpfs overwrite" bare "$r" -- -w 8 -s "$WRITE_SIZE" -i 4M -x 0 -I 1 -T "$SECS" --bare --overwrite
    done
    rm -f "$shm/over.dat"
    for r in $(seq "$REPEAT"); do
        target=$shm/new.dat
        f write "tmpfs new file" forebay "$r" --remove "$target" -- -w 8 -s "$WRITE_SIZE" -i 4M -x 0 -I 1
        f write "tmpfs new file" "forebay, one call" "$r" --remove "$target" -- -w 1 -s "$WRITE_SIZE" -i "$WRITE_SIZE" -x 0 -I 1
        f write "tmpfs new file" bare "$r" --remove "$target" -- -w 8 -s "$WRITE_SIZE" -i 4M -x 0 -I 1 --bare
    done
    rm -f "$shm/new.dat"
    say "page-allocation ceiling of $TMPFS"
    "$PYTHON" "$here/tmpfs_pages.py" "$shm" 4 | tee -a "$OUT_DIR/tmpfs_pages.txt"
    target=$SCRATCH/write.dat
    head -c "$WRITE_SIZE" /dev/zero >"$target" && sync "$target"
    for r in $(seq "$REPEAT"); do
        f write "disk 1M x 4" forebay "$r" --drop "$target" -- -w 4 -s "$WRITE_SIZE" -i 1M -x 0 -I 1 -T "$SECS" --cache bypass --overwrite
        ! has_fio || io write "disk 1M x 4" fio "$r" --drop "$target" -- --rw=write --bs=1M --direct=1 --ioengine=io_uring --iodepth=1 $(parts "$WRITE_SIZE" 4)
    done
    rm -f "$target"
    target=
}

# One 4 KiB synchronous read at a time, warm.
latency() {
    need_file
    local r wait first=--warm
    for r in $(seq "$REPEAT"); do
        for wait in latency cpu; do
            f latency "4K x 1, $wait" forebay "$r" ${first:+$first "$file"} -- -w 1 -s "$SIZE" -i 4K -x 0 -I 2 -T "$SECS" --objective "$wait"
            first=
            f latency "4K x 1, $wait" bare "$r" -- -w 1 -s "$SIZE" -i 4K -x 0 -I 2 -T "$SECS" --bare --objective "$wait"
        done
    done
}

# Transfer type 0 against type 2, cold, O_DIRECT, everything on one CPU.
types() {
    need_file
    local r spec size workers x
    wrap=(taskset -c "$TYPES_CPU")
    for spec in 4K:4 4K:8 64K:4 64K:8 1M:40; do
        size=${spec%:*} workers=${spec#*:}
        for r in $(seq "$REPEAT"); do
            for x in 0 2; do
                f types "$size x $workers" "type $x" "$r" --drop "$file" -- \
                    -w "$workers" -s "$SIZE" -i "$size" -x "$x" -I 2 -T "$SECS" --cache bypass --drop-cache
            done
        done
    done
    wrap=()
}

# The limits of a default container: another user, 8 MiB of locked memory, no io_uring.
container() {
    [ "$(id -u)" = 0 ] || { skip "container: needs root to change the user"; return; }
    need_file
    local r first=--warm here_wrap
    # The binaries must be readable for that user, wherever the checkout lies.
    mkdir -p "$shm/bin" && chmod 755 "$shm" "$shm/bin"
    cp "$FOREBAY" "$shm/bin/forebay" && cp "$here/deny_io_uring.py" "$shm/bin/"
    ! has_fio || cp "$FIO" "$shm/bin/fio"
    chmod 777 "$json"
    here_wrap=("$PYTHON" "$shm/bin/deny_io_uring.py" --user "$CONTAINER_USER" --memlock 8388608)
    local outside=$FOREBAY outside_fio=$FIO
    for r in $(seq "$REPEAT"); do
        wrap=() FOREBAY=$outside
        f container "warm 4M x 8" "forebay as root" "$r" ${first:+$first "$file"} -- -w 8 -s "$SIZE" -i 4M -x 0 -I 0 -T "$SECS" --engine staged
        wrap=("${here_wrap[@]}") FOREBAY=$shm/bin/forebay
        f container "warm 4M x 8" forebay "$r" ${first:+$first "$file"} -- -w 8 -s "$SIZE" -i 4M -x 0 -I 0 -T "$SECS" --engine staged
        first=
    done
    FIO=$shm/bin/fio
    for r in $(seq "$REPEAT"); do
        for spec in read:0:1M:4 randread:2:4k:16; do
            IFS=: read -r rw kind bs workers <<<"$spec"
            f container "cold $rw ${bs^^} x $workers" forebay "$r" --drop "$file" -- -w "$workers" -s "$SIZE" -i "${bs^^}" -x 0 -I "$kind" -T "$SECS" --cache bypass
            ! has_fio || io container "cold $rw ${bs^^} x $workers" "fio psync" "$r" --drop "$file" -- \
                --rw="$rw" --bs="$bs" --direct=1 --ioengine=psync --readonly $(if [ "$rw" = read ]; then parts "$SIZE" "$workers"; else echo --numjobs="$workers"; fi)
        done
    done
    wrap=() FOREBAY=$outside FIO=$outside_fio
}

# No GPU: host memory warm and cold, and our own cost per operation.
local_() {
    need_file
    local r first=--warm
    for r in $(seq "$REPEAT"); do
        f local "host warm 1M x 1" forebay "$r" ${first:+$first "$file"} -- -w 1 -s "$SIZE" -i 1M -x 0 -I 0 -T "$SECS" --engine host
        first=
        f local "host warm 1M x 1" bare "$r" -- -w 1 -s "$SIZE" -i 1M -x 0 -I 0 -T "$SECS" --bare
        ! has_fio || io local "host warm 1M x 1" "fio psync" "$r" -- --rw=read --bs=1M --direct=0 --invalidate=0 --ioengine=psync --readonly
    done
    for r in $(seq "$REPEAT"); do
        f local "host cold 16M x 1" forebay "$r" --drop "$file" -- -w 1 -s "$SIZE" -i 16M -x 0 -I 0 -T "$SECS" --engine host --drop-cache
        ! has_fio || io local "host cold 16M x 1" fio "$r" --drop "$file" -- --rw=read --bs=1M --direct=1 --ioengine=io_uring --iodepth=16 --readonly
        f local "noop 4K" forebay "$r" -- -w 1 -s "$SIZE" -i 4K -x 0 -I 2 -T "$SECS" --engine noop
    done
    has_fio || skip "fio (bench/build-fio.sh)"
}

# One whole file, warm, read in place: pages registered by the read itself, registered before it, and more than the
# budget holds. With --repeat the first of five passes is a first read, so that the median is one of a later read.
mapped() {
    need_file
    local r threads first=--warm whole="-w 1 -s $SIZE -i $SIZE -x 0 -I 0"
    for r in $(seq "$REPEAT"); do
        f mapped "first read" forebay "$r" ${first:+$first "$file"} -- $whole --trim --repeat 3
        first=
        f mapped "first read" bare "$r" -- $whole --trim --repeat 3 --bare --engine mapped
        f mapped "first read" "forebay staged" "$r" -- $whole --repeat 3 --engine staged
        kvikio_threads mapped "first read" "$r"
        f mapped "later reads" forebay "$r" -- $whole --repeat 5
        f mapped "later reads" bare "$r" -- $whole --repeat 5 --bare --engine mapped
        f mapped "later reads" "forebay staged" "$r" -- $whole --repeat 5 --engine staged
        kvikio_threads mapped "later reads" "$r"
        f mapped "later reads 4M x 8" forebay "$r" -- -w 8 -s "$SIZE" -i 4M -x 0 -I 0 --repeat 5
        f mapped "later reads 4M x 8" bare "$r" -- -w 8 -s "$SIZE" -i 4M -x 0 -I 0 --repeat 5 --bare --engine mapped
        wrap=(env FOREBAY_PIN_BUDGET=256M)
        f mapped "budget 256M" forebay "$r" -- $whole --repeat 5
        wrap=()
        f mapped "budget 256M" "forebay staged" "$r" -- $whole --repeat 5 --engine staged
        kvikio_threads mapped "budget 256M" "$r"
    done
    has_kvikio || skip "KvikIO (bench/fetch-peers.sh says how to bring it)"
}
# kvikio_threads SECTION CASE REPEAT: the same file by KvikIO
kvikio_threads() {
    has_kvikio || return 0
    local threads
    for threads in $KVIKIO_THREADS; do
        m "$1" "$2" "kvikio $threads" "$3" kvikio -- "$PYTHON" "$here/kvikio_read.py" "$file" --threads "$threads" --task-size 4M --repeat 3
    done
}

# Small random pieces of a warm file: large batches, elected and staged, and gathers by one kernel.
mrand() {
    need_file
    local r size first=--warm batch="-s $SIZE -i 4K -x 6 -B 4096 -I 2 -T $SECS --repeat 3"
    for r in $(seq "$REPEAT"); do
        f mrand "4K B4096" forebay "$r" ${first:+$first "$file"} -- $batch
        first=
        f mrand "4K B4096" "forebay staged" "$r" -- $batch --engine staged
        for size in 4K 512; do
            f mrand "gather $size" forebay "$r" -- -s "$SIZE" -i "$size" -B "$GATHER_PIECES" -T "$SECS" --gather
            f mrand "gather $size" bare "$r" -- -s "$SIZE" -i "$size" -B "$GATHER_PIECES" -T "$SECS" --gather --bare
            f mrand "gather $size" "forebay, offsets at the host" "$r" -- -s "$SIZE" -i "$size" -B "$GATHER_PIECES" -T "$SECS" --gather=host
        done
    done
}

# Many small files: opened, read whole and closed. Their IOPS are files a second.
files() {
    local r workers files_dir=${FILES_DIR:-$shm/files}
    say "$FILES files of $FILE_SIZE in $files_dir"
    "$FOREBAY" bench --files "$files_dir" --make-files "$FILES" -i "$FILE_SIZE" -w 8 -d "$DEVICE" >/dev/null 2>&1 ||
        { skip "files: cannot make or read them (space: df -h)"; return; }
    for r in $(seq "$REPEAT"); do
        for workers in $FILE_WORKERS; do
            d files "$FILES of $FILE_SIZE x $workers" forebay "$r" -- -w "$workers"
            d files "$FILES of $FILE_SIZE x $workers" "forebay staged" "$r" -- -w "$workers" --engine staged
        done
    done
    [ -n "${FILES_DIR:-}" ] || rm -rf "$files_dir"
}

# NVIDIA's libcufile as an engine, beside forebay's own. Without udev it needs `eval "$(bench/nvidia-libcufile.sh DIR)"`
# before; FOREBAY_VENDOR_LIBCUFILE names the library where it is in no usual place.
vendor() {
    need_file
    local r spec
    for r in $(seq "$REPEAT"); do
        for spec in warm:1M:4 warm:16M:4 cold:1M:4 cold:16M:4; do
            IFS=: read -r state size workers <<<"$spec"
            # The elected engine reads a warm file in place after a while; `staged` does the same work as NVIDIA's.
            for engine in elected staged libcufile; do
                f vendor "$state $size x $workers" "$engine" "$r" --"${state/cold/drop}" "$file" -- \
                    -w "$workers" -s "$SIZE" -i "$size" -x 0 -I 0 -T "$SECS" \
                    $([ "$engine" = elected ] || echo --engine "$engine") $([ "$state" = warm ] || echo --drop-cache)
            done
        done
    done
}

for section in "$@"; do
    say "$section"
    case $section in local) local_ ;; *) "$section" ;; esac
done
"$PYTHON" "$here/report.py" "$results" --markdown "$OUT_DIR/table.md"
