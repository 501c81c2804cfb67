# shellcheck shell=bash
# forebay's S3 gateway and client over the guest's soft RDMA device. After forebay.sh, rdma.sh and rdma_up.

export AWS_ACCESS_KEY_ID=forebay AWS_SECRET_ACCESS_KEY=of-a-test AWS_REGION=us-east-1 AWS_EC2_METADATA_DISABLED=true
export AWS_CONFIG_FILE=/dev/null AWS_SHARED_CREDENTIALS_FILE=/dev/null
# This guest is the gateway's node: without it objects would be read by their files.
export FOREBAY_S3_LOCAL=off

# gateway PORT [OPTION …]: serves /srv; its process is $gateway.
gateway() {
    local port=$1
    shift
    mkdir -p /srv/bucket
    forebay serve s3 /srv --listen "$address:$port" --leave-time 0 "$@" >/tmp/gateway.txt 2>&1 &
    gateway=$!
    for _ in $(seq 300); do
        ! (exec 3<>"/dev/tcp/$address/$port") 2>/dev/null || break
        kill -0 $gateway 2>/dev/null || fail "the gateway: $(cat /tmp/gateway.txt)"
        sleep 0.1
    done
    export AWS_ENDPOINT_URL=http://$address:$port
}

# by require|prefer|off COMMAND …
by() {
    local wish=$1
    shift
    FOREBAY_S3_RDMA=$wish "$@"
}

# packets: what the RDMA device sent.
packets() { cat /sys/class/infiniband/lab0/ports/1/hw_counters/sent_pkts; }

# tcp_bytes: what went over the loopback interface: HTTP.
tcp_bytes() { cat /sys/class/net/lo/statistics/rx_bytes; }

# moved rdma|http BYTES COMMAND …: all the bytes went that way; by RDMA, HTTP carried heads alone.
moved() {
    local way=$1 bytes=$2 sent tcp
    shift 2
    sent=$(packets) tcp=$(tcp_bytes)
    quiet "$@"
    sent=$(($(packets) - sent)) tcp=$(($(tcp_bytes) - tcp))
    echo "  $bytes bytes by $way: $sent RDMA packets, $tcp bytes of TCP"
    case $way in
        rdma)
            [ $((sent * 4096)) -ge "$bytes" ] || fail "only $sent RDMA packets: $said"
            [ $tcp -lt $((65536 + bytes / 50)) ] || fail "$tcp bytes went by TCP: $said"
            ;;
        http)
            [ $sent -lt 50 ] || fail "$sent RDMA packets: $said"
            [ $tcp -ge "$bytes" ] || fail "only $tcp bytes went by TCP: $said"
            ;;
    esac
}
