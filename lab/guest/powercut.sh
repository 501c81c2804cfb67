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

# power_cut TYPE OPTIONS: `forebay cp`, the same by a build without syncs, which must be caught, and `save_file`.
power_cut() {
    local type=$1 options=$2 said
    pattern /tmp/old $size old
    pattern /tmp/new $size new

    say "cp"
    record "$type" "$options" gpu forebay cp /tmp/new /mnt/file
    check_states "$options" || fail "cp: a state is neither old nor new, or lost"

    say "cp, by a build whose syncs do nothing"
    cp /payload/nosync /tmp/nosync.so
    record "$type" "$options" gpu env LD_PRELOAD=/tmp/nosync.so forebay cp /tmp/new /mnt/file
    if said=$(check_states "$options"); then fail "a build without fsync was not caught"; fi
    echo "$said"
    grep -q "MIXED [1-9]" <<<"$said" || fail "a build without fsync left no mixed file"

    say "save_file"
    cp -r /payload/wheel /tmp/wheel
    gpu python3 /lab/guest/save.py /tmp/new /tmp/saved
    mv /tmp/saved /tmp/new.saved
    record "$type" "$options" gpu python3 /lab/guest/save.py /tmp/new /mnt/file
    mv /tmp/new.saved /tmp/new
    check_states "$options" || fail "save_file: a state is neither old nor new, or lost"
}
