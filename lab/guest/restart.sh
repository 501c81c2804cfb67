# shellcheck shell=bash
# A server that stops, or takes its exports away, under forebay's own client. After direct.sh.

# wait_for SECONDS COMMAND …: until it succeeds.
wait_for() {
    local until=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $until ] || return 1
        sleep 0.1
    done
}

# round NAME: how many rounds it has done.
round() { grep -c '^round ' "$1.txt" || true; }

beyond() { [ "$(round "$1")" -gt "$2" ]; }

# goes_on SECONDS NAME …: each does two rounds more, so that one of them began later than now.
goes_on() {
    local limit=$1 name now
    shift
    for name in "$@"; do
        now=$(round "$name")
        wait_for "$limit" beyond "$name" $((now + 1)) || fail "$name did not go on: $(tail -n 3 "$name.txt")"
    done
}

# begin NAME KIND WHAT …: nfs_loop in the background.
declare -A pids
begin() {
    local name=$1
    shift
    rm -f end "$name.txt"
    touch "$name.txt"
    nfs_loop "$@" >"$name.txt" 2>&1 &
    pids[$name]=$!
    wait_for 30 beyond "$name" 0 || fail "$name did not begin: $(cat "$name.txt")"
}

# reads|writes KIND VERSION
reads() { begin reads "$1" rounds "$(url "$2" source)" /tmp/source end; }
writes() { begin writes "$1" rewrites "$(url "$2" written)" end; }

# ends_well NAME …: without an error.
ends_well() {
    local name
    touch end
    for name in "$@"; do
        wait_for 60 has_ended "$name" || fail "$name does not end"
        wait "${pids[$name]}" || fail "$name: $(tail -n 3 "$name.txt")"
        echo "  $name: $(round "$name") rounds; $(tail -n 1 "$name.txt")"
    done
}

has_ended() { ! kill -0 "${pids[$1]}"; }

# ends_with NAME ERROR: by itself, with this error.
ends_with() {
    wait_for 30 has_ended "$1" || fail "$1 hangs: $(tail -n 3 "$1.txt")"
    ! wait "${pids[$1]}" || fail "$1 saw no error"
    grep -q "^$2" "$1.txt" || fail "$1: not '$2': $(grep -v '^round' "$1.txt")"
    echo "  $1 ends: $(grep "^$2" "$1.txt")"
}

# counted NAME WHAT: from its last line.
counted() { tail -n 1 "$1.txt" | sed -n "s/.* $2 \([0-9]*\).*/\1/p"; }

# At once: `rpc.nfsd 0` takes a second to begin.
stop_server() { echo 0 >/proc/fs/nfsd/threads; }

start_server() {
    rpc.nfsd 4
    grep -q '^rdma 20049' /proc/fs/nfsd/portlist || echo "rdma 20049" >/proc/fs/nfsd/portlist
}

fresh_files() {
    exported rw >/etc/exports
    exportfs -ra
    cp /tmp/source /export/tmp/source
    cp /tmp/source /export/tmp/written
}

restarted() {
    local kind=$1 version=$2 name
    fresh_files
    reads "$kind" "$version"
    writes "$kind" "$version"
    stop_server
    start_server
    goes_on 60 reads writes
    ends_well reads writes
    for name in reads writes; do
        # Four connections, and at least one made again.
        [ "$(counted $name connections)" -gt 4 ] || fail "$name did not lose a connection"
        [ "$(counted $name strange)" = 0 ] || fail "$name got strange replies"
        [ "$version" = 3 ] || [ "$(counted $name waited)" -gt 0 ] || fail "$name did not wait for the end of grace"
    done
}

copy_restarted() {
    local kind=$1 version=$2 pid before
    fresh_files
    pattern /export/tmp/big 100000001 big
    rm -f /tmp/copies/*
    before=$(server_count read)
    by "$kind" forebay cp "$(url "$version" big)" /tmp/copies/big >cp.txt 2>&1 &
    pid=$!
    # The copy has no name yet: what the server has read of the file tells.
    wait_for 30 has_served $((before + 10000000)) || fail "cp did not begin: $(cat cp.txt)"
    # It stands still until the server is gone: the rest may take less time than that.
    kill -STOP $pid
    stop_server
    kill -CONT $pid || fail "cp had ended before: $(cat cp.txt)"
    start_server
    wait_for 90 gone_process $pid || fail "cp hangs"
    wait $pid || fail "cp: $(cat cp.txt)"
    same /export/tmp/big /tmp/copies/big
    echo "  copied: $(head -n 1 cp.txt)"
    rm -f /tmp/copies/* /export/tmp/big
}

has_served() { [ "$(server_count read)" -gt "$1" ]; }
gone_process() { ! kill -0 "$1"; }

made_read_only() {
    fresh_files
    reads "$1" "$2"
    writes "$1" "$2"
    exported ro >/etc/exports
    exportfs -ra
    # A round writes, and then makes it durable: the export changes during either.
    ends_with writes 'ReadOnly: cannot \(write\|make the file durable\): the export is read-only'
    goes_on 30 reads
    ends_well reads
}

taken_away() {
    fresh_files
    reads "$1" "$2"
    exportfs -u '*:/export/tmp'
    ends_with reads "Busy: cannot read: the file was removed or replaced on the server (stale handle)"
}

removed() {
    fresh_files
    reads "$1" "$2"
    rm /export/tmp/source
    # Whatever the server still has open of it ends with a restart.
    stop_server
    start_server
    ends_with reads "Busy: cannot read: the file was removed or replaced on the server (stale handle)"
}

stays_away() {
    fresh_files
    wait_for 30 grep -q Y /proc/fs/nfsd/v4_end_grace || fail "the time of grace does not end"
    export NFS_LOOP_DEADLINE=5
    reads "$1" "$2"
    writes "$1" "$2"
    unset NFS_LOOP_DEADLINE
    stop_server
    ends_with reads "Timeout: the server does not answer"
    ends_with writes "Timeout: the server does not answer"
    start_server
}
