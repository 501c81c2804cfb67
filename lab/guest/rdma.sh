# shellcheck shell=bash
# A soft RDMA device on the guest's own network card: both ends of every connection are this guest.

address=10.9.0.1

# rdma_up TYPE: rxe (RoCE) or siw (iWARP).
rdma_up() {
    modprobe -a virtio_net "rdma_$1" ib_uverbs rdma_ucm rdma_cm 2>/dev/null || true
    local card
    for card in /sys/class/net/*; do [ ! -e "$card/device" ] || break; done
    card=${card##*/}
    ip address add $address/24 dev "$card"
    ip link set "$card" mtu 4200 2>/dev/null || true
    ip link set "$card" up
    rdma link add lab0 type "$1" netdev "$card"
    for _ in $(seq 50); do
        ! rdma link show lab0/1 | grep -q "state ACTIVE" || return 0
        sleep 0.1
    done
    fail "the RDMA link did not come up: $(rdma link show)"
}

# both SERVER … -- CLIENT …: runs the two halves of a test and wants both to succeed.
both() {
    local server=() client=()
    while [ "$1" != -- ]; do server+=("$1") && shift; done
    shift
    client=("$@")
    timeout 60 "${server[@]}" >/tmp/server.txt 2>&1 &
    local pid=$!
    sleep 2
    timeout 60 "${client[@]}" >/tmp/client.txt 2>&1 || fail "${client[*]}: $(tail -n 3 /tmp/client.txt)"
    wait $pid || fail "${server[*]}: $(tail -n 3 /tmp/server.txt)"
    echo "  ${client[0]}: ok"
}
