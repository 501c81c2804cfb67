# shellcheck shell=bash
# Two guests with a cable between them: the second is the server, and does what the first orders by way of /out. After restart.sh.

address=10.9.0.$guest
rdma_up rxe
card=$(cat /sys/class/infiniband/lab0/parent)
# Nobody has to be asked where the other one is, which rxe does not survive where nobody answers.
ip neighbour replace 10.9.0.$((3 - guest)) lladdr 52:54:00:00:00:0$((3 - guest)) dev "$card" nud permanent
pattern /tmp/source 2000001 links

# serve: the second guest's part; it ends with the first.
serve() {
    nfs_server
    fresh_files
    touch /out/serves
    while :; do
        if [ -e /out/order ]; then
            mv /out/order /out/doing
            bash /out/doing >/out/said 2>&1 || true
            mv /out/doing /out/done
        fi
        sleep 0.05
    done
}

# there COMMAND …: the server does it.
there() {
    rm -f /out/done
    echo "$*" >/out/order.new
    mv /out/order.new /out/order
    wait_for 60 test -e /out/done || fail "the server does not do: $*"
    [ ! -s /out/said ] || fail "the server, asked to $*: $(cat /out/said)"
}

# both_ends COMMAND …: here and there.
both_ends() {
    there "$@"
    "$@"
}

# rxe's own queue pair for making connections fails for good when it has something to send and cannot: then the server's device is
# made anew. (Here that is not possible: rxe's devices go when the last process has closed them.)
rxe_mended() {
    there "if rdma resource show qp | grep -q 'GSI state ERR'; then
        rdma link delete lab0 && rdma link add lab0 type rxe netdev $card
    fi"
}

# cut HOW, joined HOW: `there` and `here` take a card down, `silently` loses every packet at both ends, `unplugged` takes the
# server's RDMA device away.
cut() {
    case $1 in
        there) there ip link set "$card" down ;;
        here) ip link set "$card" down ;;
        unplugged) there rdma link delete lab0 ;;
        silently) both_ends tc qdisc add dev "$card" root netem loss 100% ;;
    esac
}

joined() {
    case $1 in
        there) there ip link set "$card" up ;;
        here) ip link set "$card" up ;;
        unplugged) there rdma link add lab0 type rxe netdev "$card" ;;
        silently) both_ends tc qdisc del dev "$card" root ;;
    esac
    rxe_mended
}

# cut_for SECONDS HOW KIND VERSION: a reader and a writer go on behind it, with the right bytes.
cut_for() {
    local seconds=$1 how=$2 kind=$3 version=$4 before
    reads "$kind" "$version"
    writes "$kind" "$version"
    cut "$how"
    # That long: what is under way meanwhile is lost.
    sleep "$seconds"
    before="$(round reads) and $(round writes)"
    joined "$how"
    goes_on 90 reads writes
    echo "  $how, $seconds s: went on after $before rounds"
    ends_well reads writes
}

# cut_for_good KIND VERSION: an error, in time.
cut_for_good() {
    export NFS_LOOP_DEADLINE=8 NFS_LOOP_SILENCE=4
    reads "$1" "$2"
    writes "$1" "$2"
    unset NFS_LOOP_DEADLINE NFS_LOOP_SILENCE
    cut silently
    ends_with reads "Timeout: the server does not answer"
    ends_with writes "Timeout: the server does not answer"
    joined silently
}
