#!/usr/bin/env bash
# Makes NVIDIA's libcufile run on a machine without udev, so that it can be measured beside forebay's.
#
#   eval "$(bench/nvidia-libcufile.sh DIR [FILE])"
#
# DIR holds libcufile.so.0 (in a wheel: nvidia/cu13/lib), FILE is on the file system that will be read (default: the
# current folder). That library asks udev's database what is on the block device of a file, and refuses every file
# where there is no answer. This script writes the answer, /run/udev/data/b<major>:<minor>, unless there is one (root
# only; the file is the only change to the system, and it is gone after a reboot). It also writes a cufile.json with
# the values of the one that NVIDIA ships, as without it requests on streams are off.
#
# Standard output: `export NAME=VALUE` lines. Standard error: the steps.
set -euo pipefail

[ $# -ge 1 ] && [ $# -le 2 ] || { sed -n '2,13p' "$0" | cut -c3- >&2; exit 2; }
dir=$(realpath "$1") file=${2:-.}
say() { printf 'nvidia-libcufile: %s\n' "$*" >&2; }
[ -e "$dir/libcufile.so.0" ] || { say "error: no libcufile.so.0 (path=$dir)"; exit 1; }
while [ ! -e "$file" ]; do file=$(dirname "$file"); done

read -r number kind < <(findmnt -nro MAJ:MIN,FSTYPE -T "$file")
record=/run/udev/data/b$number
if [ "${number%%:*}" = 0 ]; then
    say "the file is on $kind, which has no block device: expect that its registration is refused (path=$file)"
elif grep -qs '^E:ID_FS_USAGE=' "$record"; then
    say "udev knows the device $number: nothing to do (path=$record)"
elif [ -e "$record" ]; then
    say "udev has a record of the device $number that names no file system; left as it is (path=$record)"
elif [ "$(id -u)" != 0 ]; then
    say "error: the record must be written by root (path=$record)"
    exit 1
else
    mkdir -p /run/udev/data
    printf 'E:ID_FS_USAGE=filesystem\nE:ID_FS_TYPE=%s\n' "$kind" >"$record"
    say "wrote a record that says that the device $number holds $kind (path=$record)"
fi
ldconfig -p 2>/dev/null | grep -q 'libudev\.so\.1' || say "warning: no libudev.so.1, by which the record is read"

settings=${NVIDIA_SETTINGS:-${TMPDIR:-/tmp}/nvidia-libcufile.$(id -u)}
mkdir -p "$settings"
cat >"$settings/cufile.json" <<JSON
{
    "logging": { "dir": "$settings", "level": "ERROR" },
    "execution": {
        "max_io_queue_depth": 128, "max_io_threads": 4, "parallel_io": true,
        "min_io_threshold_size_kb": 8192, "max_request_parallelism": 4
    },
    "properties": {
        "max_direct_io_size_kb": 16384, "max_device_cache_size_kb": 131072,
        "max_device_pinned_mem_size_kb": 33554432, "posix_pool_slab_size_kb": [4, 1024, 16384],
        "posix_pool_slab_count": [128, 64, 64], "allow_compat_mode": true, "io_batchsize": 128
    }
}
JSON
say "settings and log in $settings"
printf 'export LD_LIBRARY_PATH=%s\n' "$dir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
printf 'export CUFILE_ENV_PATH_JSON=%s/cufile.json\n' "$settings"
printf 'export CUFILE_ALLOW_COMPAT_MODE=true\n'
