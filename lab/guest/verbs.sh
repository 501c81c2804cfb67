# shellcheck shell=bash
# forebay's own connections over a soft RDMA device; after rdma.sh and rdma_up.

cp /payload/verbs-loop /usr/local/bin/verbs_loop

# nobody COMMAND …: without privilege.
nobody() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }

# told PATTERN: what verbs_loop said.
told() { grep -q -- "$1" verbs.txt || fail "verbs_loop did not say: $1"; }

# compared USER-COMMAND …: all steps, as this user.
compared() {
    "$@" verbs_loop $address >verbs.txt 2>&1 || fail "verbs_loop ($*): $(cat verbs.txt)"
    sed 's/^/    /' verbs.txt
    told "^probe: 5 WRITEs of no bytes harm nothing"
    told "^write: 5 RDMA WRITEs .* compared"
    told "^read: 4 RDMA READs .* compared"
    told "^deregistered: .* refused .* 8192 bytes unchanged"
    told "^rights: .* refused .* unchanged"
    told "^forked: .* 8192 bytes compared"
    told "^other domain: .* refused .* unchanged"
}

# paired_in_band: what `compared` said of ends that are paired in band.
paired_in_band() {
    told "^paired: $address, port 1, MTU 4096"
    told "^paired, write: 5 RDMA WRITEs .* compared"
    told "^paired, read: 4 RDMA READs .* compared"
    told "^paired, immediate: 4 WRITEs .* compared"
    told "^paired, window: bound 11 times .* compared"
    told "^paired, window invalidated: .* refused .* unchanged"
    told "^paired, rights: .* refused .* unchanged"
    told "^paired, MTU 256: 5 RDMA WRITEs .* compared"
    told "^paired, dropped: .* fails \\[Unreachable\\], 8192 bytes unchanged"
    told "^paired, flushed: 8 receives"
    told "^paired, sequence number too low: .* \\[Unreachable\\], 8192 bytes unchanged"
    told "^paired, sequence number too high: a WRITE .*, 8192 bytes unchanged"
    told "^paired, wrong queue pair: .* \\[Unreachable\\], 8192 bytes unchanged"
    told "^paired, wrong GID: "
}

# refused REASON COMMAND …: it fails for this reason.
refused() {
    local why=$1
    shift
    if "$@" >verbs.txt 2>&1; then fail "should have failed: $* ($(cat verbs.txt))"; fi
    told "^why: $why\$"
    told "^hint: "
    echo "  $why: $(head -n 1 verbs.txt)"
}

# verbs_missing: what is not there is named.
verbs_missing() {
    chmod 666 /dev/infiniband/rdma_cm /dev/infiniband/uverbs*
    (ulimit -l 1024 && refused Memlock nobody verbs_loop register $address 2097152)
    (ulimit -l 8192 && nobody verbs_loop register $address 2097152)
    chmod 600 /dev/infiniband/uverbs*
    refused Permission nobody verbs_loop $address
    chmod 666 /dev/infiniband/uverbs*
    chmod 600 /dev/infiniband/rdma_cm
    refused Permission nobody verbs_loop $address
    chmod 666 /dev/infiniband/rdma_cm
    refused NoRoute verbs_loop 127.0.0.1
    refused NoLibrary unshare -m bash -c \
        'mount --bind /dev/null "$(ldconfig -p | sed -n "s/.*libibverbs.so.1 .*=> //p")" && exec verbs_loop 10.9.0.1'
}

# verbs_removed: a connection ends with its device.
verbs_removed() {
    verbs_loop hold $address >held.txt 2>&1 &
    local pid=$!
    for _ in $(seq 100); do
        ! grep -q "^up" held.txt || break
        sleep 0.1
    done
    rdma link delete lab0
    wait $pid || fail "verbs_loop hold: $(cat held.txt)"
    grep -q "^down: Some(DeviceRemoved) and Some(DeviceRemoved)" held.txt || fail "$(cat held.txt)"
    grep -q "^paired, down: Some(DeviceRemoved) and Some(DeviceRemoved)" held.txt || fail "$(cat held.txt)"
    sed 's/^/  /' held.txt
    refused NoDevice verbs_loop $address
}
