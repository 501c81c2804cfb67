# proves: forebay's S3 client and its gateway over soft RoCE (rxe), by the dialect rc1: objects and ranges of them come into host memory
#   and the software GPU, and new ones leave, all bytes compared; the device's counters have them, TCP has heads alone. Without
#   --rdma, locked memory or a living gateway the bytes come by HTTP, or are refused with the reason.
# kernel: debian
# memory: 2G
# qemu: -device virtio-net-pci,netdev=n0,romfile= -netdev user,id=n0,restrict=on
# needs: forebay fake-cuda
# timeout: 900
. /lab/guest/forebay.sh
. /lab/guest/rdma.sh
. /lab/guest/s3.sh
rdma_up rxe
gateway 9000 --rdma
size=25000007
pattern /tmp/source $size
cp /tmp/source /srv/bucket/object

say "into host memory"
moved rdma $size by require forebay cp s3://bucket/object /tmp/copy --verify
same /tmp/source /tmp/copy
grep -q "bytes by RDMA into host memory: S3 by RDMA, rc1, server .*, NIC lab0; keys: per operation" <<<"$said" ||
    fail "no receipt of RDMA: $said"
say "into the software GPU"
moved rdma $size by require gpu forebay cp -d 0 s3://bucket/object /tmp/copy --verify
same /tmp/source /tmp/copy
grep -q "RDMA" <<<"$said" || fail "no receipt of RDMA: $said"
say "new objects"
moved rdma $size by require forebay cp /tmp/source s3://bucket/new --verify
same /tmp/source /srv/bucket/new
say "by HTTP"
moved http $size by off forebay cp s3://bucket/object /tmp/copy
same /tmp/source /tmp/copy

say "without privilege"
chmod 666 /dev/infiniband/rdma_cm /dev/infiniband/uverbs*
# nobody KIB COMMAND …: with as much locked memory.
nobody() { (ulimit -l "$1" && shift && setpriv --reuid 65534 --regid 65534 --clear-groups "$@"); }
mkdir -m 777 /tmp/nobody
moved rdma $size by require nobody 262144 forebay cp s3://bucket/object /tmp/nobody/copy
same /tmp/source /tmp/nobody/copy
must_fail by require nobody 1024 forebay cp s3://bucket/object /tmp/nobody/copy
grep -q "hint: ulimit -l unlimited" <<<"$said" || fail "no hint: $said"
quiet by prefer nobody 1024 forebay cp s3://bucket/object /tmp/nobody/copy
same /tmp/source /tmp/nobody/copy
echo "  1 MiB of locked memory, by prefer: compared"

say "a gateway that is killed, and another one at its address"
kill -9 $gateway
wait $gateway || true
must_fail timeout 60 env FOREBAY_S3_RDMA=require forebay cp s3://bucket/object /tmp/copy
gateway 9000 --rdma
moved rdma $size by require forebay cp s3://bucket/object /tmp/copy
same /tmp/source /tmp/copy

say "a gateway without RDMA"
gateway 9001
must_fail by require forebay cp s3://bucket/object /tmp/copy
grep -qi "rdma" <<<"$said" || fail "no reason: $said"
moved http $size by prefer forebay cp s3://bucket/object /tmp/copy
same /tmp/source /tmp/copy
