# shellcheck shell=bash
# What scenarios share. They run as root under `set -euo pipefail` in an empty /tmp; exit code 0 is a pass.

say() { echo "--- $*"; }

fail() {
    echo "FAILED: $*"
    exit 1
}

# Ends the scenario: what it needs is not here.
skip() {
    echo "$*" >/out/skipped
    exit 77
}

# The device node of the drive with this serial number (virtio or NVMe).
drive() {
    local file
    for file in /sys/block/*/serial /sys/block/*/device/serial; do
        if [ -e "$file" ] && [ "$(tr -d ' ' <"$file")" = "$1" ]; then
            file=${file#/sys/block/}
            echo "/dev/${file%%/*}"
            return
        fi
    done
    echo "no drive with serial $1" >&2
    return 1
}

# pattern FILE BYTES [SEED]: a file of bytes that differ at every offset; the same for the same seed.
pattern() { python3 /lab/guest/pattern.py "$@"; }

# same A B: fails unless both files hold the same bytes.
same() { cmp -- "$1" "$2" || fail "$1 and $2 differ"; }

# Runs a command, and shows what it said only if it fails. It stays in $said.
quiet() {
    if ! said=$("$@" 2>&1); then fail "$*: $said"; fi
}

# Runs a command that must fail, and keeps what it said in $said.
must_fail() {
    if said=$("$@" 2>&1); then fail "should have failed: $* (said: $said)"; fi
    echo "refused, as it should be: $said"
}

# make_fs TYPE DEVICE [FOLDER]: a fresh file system, mounted (/mnt if no folder is named).
make_fs() {
    case $1 in
        ext4) mkfs.ext4 -q -F -E lazy_itable_init=0 "$2" ;;
        xfs) mkfs.xfs -q -f "$2" ;;
        btrfs) mkfs.btrfs -q -f "$2" ;;
    esac
    mount -t "$1" "$2" "${3:-/mnt}"
}
