# proves: hipobj-rc-v2 with a server of another hand (versitygw's vgwrdma 1.8.0) over soft RoCE: forebay's queue pairs, paired in band,
#   and its codec move objects both ways, compared with HTTP's; what must be refused is refused. forebay's client reads and writes
#   objects of 1 and 8 MiB, with heads alone by TCP.
# kernel: debian
# memory: 3G
# qemu: -device virtio-net-pci,netdev=n0,romfile= -netdev user,id=n0,restrict=on
# needs: forebay hipobj-loop vgwrdma verbs-symbols
# timeout: 600
. /lab/guest/forebay.sh
. /lab/guest/rdma.sh
. /lab/guest/s3.sh
rdma_up rxe
cp /payload/hipobj-loop /usr/local/bin/hipobj_loop
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
before=$(packets)
hipobj_loop $address $address:7070 bucket >loop.txt 2>&1 ||
    fail "hipobj_loop: $(cat loop.txt; tail -n 20 /tmp/vgwrdma.txt)"
sed 's/^/    /' loop.txt
for line in "1 MiB: PUT and 2 GETs by RDMA, 3145728 bytes compared" "8 MiB: PUT and 2 GETs by RDMA" "range: 13579 bytes" "unsigned: 403"; do
    grep -q "^$line" loop.txt || fail "hipobj_loop did not say: $line"
done
# 27 MiB in packets of 4096 bytes.
[ $(($(packets) - before)) -ge 6900 ] || fail "only $(($(packets) - before)) packets went by RDMA"
echo "  $(($(packets) - before)) RDMA packets"

export AWS_ENDPOINT_URL=http://$address:7070
for size in 1048576 8388608; do
    say "forebay's client: $size bytes"
    pattern /tmp/source $size
    moved rdma $size by require forebay cp /tmp/source s3://bucket/by-rdma
    quiet by off forebay cp s3://bucket/by-rdma /tmp/copy
    same /tmp/source /tmp/copy
    quiet by off forebay cp /tmp/source s3://bucket/by-http
    moved rdma $size by require forebay cp s3://bucket/by-http /tmp/copy
    same /tmp/source /tmp/copy
    grep -q "bytes by RDMA into host memory: S3 by RDMA, hipobj-rc-v2, server .*, NIC lab0" <<<"$said" ||
        fail "no receipt: $said"
done
say "an upload in parts: by HTTP, for a target of hipobj-rc-v2 names no part"
pattern /tmp/source 67108864
must_fail by require forebay cp /tmp/source s3://bucket/parts
quiet by prefer forebay cp /tmp/source s3://bucket/parts
quiet by off forebay cp s3://bucket/parts /tmp/copy
same /tmp/source /tmp/copy
moved rdma 67108864 by require forebay cp s3://bucket/parts /tmp/copy
same /tmp/source /tmp/copy
say "what is refused"
must_fail by require forebay cp /tmp/source s3://not-there/key
echo "  a bucket that is not there: $(tail -n 1 <<<"$said")"
must_fail by require forebay cp s3://bucket/not-there /tmp/copy
must_fail env AWS_SECRET_ACCESS_KEY=another FOREBAY_S3_RDMA=require forebay cp s3://bucket/by-rdma /tmp/copy
