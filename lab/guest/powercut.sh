# shellcheck shell=bash
# What the power-cut scenarios share. Drives: base (the file system), log, copy (as large as base), cow.

size=5000321 # its end fits no page: the last bytes go through the page cache

# record TYPE OPTIONS COMMAND …: an old file on a fresh file system; then the command, which must replace it with what
# is in /tmp/new, while every write to the drive and every flush is recorded.
record() {
    local type=$1 options=$2 device
    shift 2
    device=$(drive base)
    modprobe -a dm-log-writes dm-snapshot "$type"
    blkdiscard -f "$device" "$(drive copy)" 2>/dev/null || blkdiscard -f "$(drive copy)" 2>/dev/null || true
    make_fs "$type" "$device"
    cp /tmp/old /mnt/file
    umount /mnt
    dd if="$device" of="$(drive copy)" bs=1M conv=sparse,fsync status=none
    dmsetup create logged --table "0 $(blockdev --getsz "$device") log-writes $device $(drive log)"
    mount -o "$options" /dev/mapper/logged /mnt
    "$@"
    dmsetup message logged 0 mark 'done'
    # Others' syncs make the journal durable, and with it what the file system has of ours.
    echo other >/mnt/other
    sync -d /mnt/other
    dmsetup message logged 0 mark end
    umount /mnt
    dmsetup remove logged
}

# check_states OPTIONS: old or new in each state, and new once the command is done.
check_states() {
    python3 /lab/guest/powercut.py "$(drive log)" "$(drive copy)" "$(drive cow)" "$1" /tmp/old /tmp/new
}
