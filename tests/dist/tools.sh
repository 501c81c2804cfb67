#!/bin/sh
# Each of NVIDIA's tools by its name, as its users type it, on a machine without a GPU.   tools.sh FOLDER
set -eu
bin=$1
work=$(mktemp -d)
cd "$work"
trap 'rm -rf "$work"' EXIT

fail() { echo "error: $*" >&2; cat log >&2; exit 1; }

for tool in gdsio gdscheck gdscheck.py gdsio_verify gds_stats; do
    "$bin/$tool" -h >log 2>&1 && grep -q "^Usage: $tool " log || fail "$tool -h"
done

# Host memory by each way that needs no GPU: files of 4 MiB in pieces of 128 KiB, written and read.
for way in 0 1; do
    for direction in 1 0; do
        "$bin/gdsio" -f data -d 0 -w 1 -s 4M -i 128K -x $way -I $direction >log 2>&1 && grep -q Throughput: log ||
            fail "gdsio -x $way -I $direction"
    done
done
"$bin/gdsio_verify" -f data -d 0 >log 2>&1 && grep -q "Data Verification Success" log || fail "gdsio_verify"
"$bin/gdsio" -f data -d 0 -w 1 -s 4M -i 128K -x 0 -I 1 -V -k 7 >log 2>&1 || fail "gdsio -V"
"$bin/gdsio_verify" -f data -d 0 --pattern 7 >log 2>&1 || fail "gdsio_verify --pattern"
! "$bin/gdsio_verify" -f data -d 0 --pattern 8 >log 2>&1 || fail "gdsio_verify takes another pattern"

# 1: it serves no GPU here.
"$bin/gdscheck" -p >log 2>&1 && code=0 || code=$?
[ $code = 1 ] && grep -q "^ GDS release version: forebay" log || fail "gdscheck -p: $code"
"$bin/gdscheck.py" -v >log 2>&1 && grep -q "libcufile version: forebay [^ ]* (/" log || fail "gdscheck.py -v"

"$bin/gdsio" -f data -d 0 -w 1 -s 4M -i 128K -x 0 -I 0 -T 60 >/dev/null 2>&1 &
reader=$!
for _ in $(seq 100); do
    sleep 0.1
    "$bin/gds_stats" -p $reader -l 3 >log 2>&1 && grep -q "^Read: ok = [1-9]" log && break
done
kill -TERM $reader
code=0
wait $reader || code=$?
grep -q "^Read: ok = [1-9]" log || fail "gds_stats of a program that reads"
[ $code = 143 ] || fail "gdsio, terminated: $code"
