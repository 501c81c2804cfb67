# proves: hipobj-rc-v2 with a server of another hand (versitygw's vgwrdma 1.8.0) over soft RoCE: forebay's queue pairs, paired in band,
#   and its codec move objects both ways, compared with HTTP's; what must be refused is refused.
# kernel: debian
# memory: 2G
# qemu: -device virtio-net-pci,netdev=n0,romfile= -netdev user,id=n0,restrict=on
# needs: hipobj-loop vgwrdma verbs-symbols
# timeout: 400
. /lab/guest/rdma.sh
rdma_up rxe
cp /payload/hipobj-loop /usr/local/bin/hipobj_loop
export AWS_ACCESS_KEY_ID=forebay AWS_SECRET_ACCESS_KEY=of-a-test
mkdir -p /tmp/data /tmp/meta

# Its GID is chosen by its first bytes: zeros begin that of an IPv4 address. Its C code gets pointers to Go's memory, which Go checks.
LD_PRELOAD=/payload/verbs-symbols ROOT_ACCESS_KEY=$AWS_ACCESS_KEY_ID ROOT_SECRET_KEY=$AWS_SECRET_ACCESS_KEY GODEBUG=cgocheck=0 \
    /payload/vgwrdma --port $address:7070 --rdma-rc-enable --rc-gid-hint 0:0:0:0 posix --sidecar /tmp/meta /tmp/data \
    >/tmp/vgwrdma.txt 2>&1 &
server=$!
for _ in $(seq 300); do
    ! (exec 3<>/dev/tcp/$address/7070) 2>/dev/null || break
    kill -0 $server 2>/dev/null || fail "vgwrdma: $(tail -n 5 /tmp/vgwrdma.txt)"
    sleep 0.2
done
sent() { cat /sys/class/infiniband/lab0/ports/1/hw_counters/sent_pkts; }
before=$(sent)
hipobj_loop $address $address:7070 bucket >loop.txt 2>&1 ||
    fail "hipobj_loop: $(cat loop.txt; tail -n 20 /tmp/vgwrdma.txt)"
sed 's/^/    /' loop.txt
for line in "1 MiB: PUT and 2 GETs by RDMA, 3145728 bytes compared" "8 MiB: PUT and 2 GETs by RDMA" "range: 13579 bytes" "unsigned: 403"; do
    grep -q "^$line" loop.txt || fail "hipobj_loop did not say: $line"
done
# 27 MiB in packets of 4096 bytes.
[ $(($(sent) - before)) -ge 6900 ] || fail "only $(($(sent) - before)) packets went by RDMA"
echo "  $(($(sent) - before)) RDMA packets"
