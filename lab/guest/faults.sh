# shellcheck shell=bash
# Faults amid transfers of objects by RDMA. After s3.sh, rdma_up and `gateway`; /tmp/source is s3://bucket/object.

card=$(cat /sys/class/infiniband/lab0/parent)

# begun COMMAND …: runs it in the background as $copy, until some of its bytes have gone by RDMA.
begun() {
    local before
    before=$(packets)
    "$@" >/tmp/copy.txt 2>&1 &
    copy=$!
    for _ in $(seq 6000); do
        [ $(($(packets) - before)) -lt 300 ] || return 0
        kill -0 $copy 2>/dev/null || fail "$*: it has ended before 300 packets had gone: $(cat /tmp/copy.txt)"
        sleep 0.01
    done
    fail "$*: nothing goes by RDMA"
}

# ended SECONDS: $copy ends well in time.
ended() {
    waited "$1"
    [ $status = 0 ] || fail "the copy: $(cat /tmp/copy.txt)"
}

# waited SECONDS: $copy ends in time; its exit code is $status.
waited() {
    status=0
    for _ in $(seq $(($1 * 20))); do
        kill -0 $copy 2>/dev/null || break
        sleep 0.05
    done
    ! kill -0 $copy 2>/dev/null || fail "the copy hangs for $1 s: $(cat /tmp/copy.txt)"
    wait $copy || status=$?
}

# The gateway's process goes, and another one comes.
killed() {
    kill -9 $gateway
    wait $gateway 2>/dev/null || true
    gateway 9000 --rdma
}

# The link is down for 2 s.
link_cut() {
    ip link set "$card" down
    sleep 2
    ip link set "$card" up
}

# Reads by RDMA go on.
goes_on() {
    local size
    size=$(stat -c %s /tmp/source)
    moved rdma "$size" by require forebay cp s3://bucket/object /tmp/copy
    same /tmp/source /tmp/copy
}

# nothing_registered: no process has queue pairs or memory of the device.
nothing_registered() {
    local kind left
    for kind in qp mr; do
        left=$(rdma resource show $kind | grep -c "pid" || true)
        [ "$left" = 0 ] || fail "$left of kind $kind are left: $(rdma resource show $kind)"
    done
    echo "  no queue pair and no memory of a process is left"
}
