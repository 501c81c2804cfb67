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
    mkdir -p "$(dirname "/mnt/${CUT_FILE:-file}")"
    cp /tmp/old "/mnt/${CUT_FILE:-file}"
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

# by_gateway [OPTION]: puts /tmp/new in the place of the old file, by S3. The gateway is killed when it has answered.
by_gateway() {
    local gateway code=0
    export AWS_ACCESS_KEY_ID=lab AWS_SECRET_ACCESS_KEY=of-a-test AWS_REGION=us-east-1 AWS_ENDPOINT_URL=http://127.0.0.1:9000
    forebay serve s3 /mnt --listen 127.0.0.1:9000 "$@" >/tmp/gateway 2>&1 &
    gateway=$!
    until grep -q serving /tmp/gateway; do sleep 0.2; done
    forebay s3 cp /tmp/new "s3://$CUT_FILE" || code=$?
    kill -KILL "$gateway"
    wait "$gateway" || true
    return "$code"
}

# gateway_power_cut TYPE OPTIONS: PUT of `forebay serve s3`, and the same with --no-sync, which must be caught.
gateway_power_cut() {
    local type=$1 options=$2 said
    export CUT_FILE=bucket/file
    pattern /tmp/old $size old
    pattern /tmp/new $size new

    say "PUT"
    record "$type" "$options" by_gateway || fail "PUT"
    check_states "$options" || fail "PUT: a state is neither old nor new, or lost"

    say "PUT, --no-sync"
    record "$type" "$options" by_gateway --no-sync || fail "PUT"
    if said=$(check_states "$options"); then fail "--no-sync was not caught"; fi
    echo "$said"
}
