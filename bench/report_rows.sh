#!/usr/bin/env bash
# Measures the tables of `forebay report` that docs/reports quotes, in about five minutes with one GPU, 16 CPUs and a disk
# of 2 GB/s, and prints them small.
#
#   bench/report_rows.sh FOREBAY FOLDER OUT
#
# FOREBAY is a release build, FOLDER lies on the disk that is measured and has 5 GiB free, OUT gets two reports:
# OUT/like (gds-modes, sizes, latency, sweep: three runs of 0.25 s a row) and OUT/nfs (nfs-rdma: one run of 10 s a row).
# A call that was cut goes on where it was. Without an NFS mount the rows of nfs-rdma run on FOLDER, pinned to one CPU, and
# do not measure NFS; its rows of two mounts are absent, and so is its server's CPU.
set -uo pipefail

[ $# = 3 ] || { sed -n '2,10p' "$0" | cut -c3- >&2; exit 2; }
forebay=$1 folder=$2 out=$3 status=0
mkdir -p "$out" || exit

"$forebay" report gds-modes sizes latency sweep --quick --repeat 3 --size 4G "$folder" -o "$out/like" >"$out/like.txt" || status=$?
"$forebay" report nfs-rdma --quick "$folder" -o "$out/nfs" >"$out/nfs.txt" || status=$?

# The head of a report, then of each table its figures and what moved its bytes.
small() {
    sed -n '/^- /p; /^## /q' "$1"
    awk '/^## / { print "\n" $0 } /^How the bytes went/ { print "" } /^\|/ && !/^\|[-:|]*$/' "$1" |
        sed 's/ *|$//; s/^| *//; s/ | /|/g'
}
for one in like nfs; do
    printf '\n== %s\n' "$out/$one"
    small "$out/$one/report.md"
done
exit "$status"
