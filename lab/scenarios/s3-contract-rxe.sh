# proves: the contract of sources holds over objects by RDMA: the same suite as for every source, with forebay's client and gateway over
#   soft RoCE (rc1): GET and ranges into host memory and the software GPU, PUT and parts. TCP has heads alone.
# kernel: debian
# memory: 2G
# qemu: -device virtio-net-pci,netdev=n0,romfile= -netdev user,id=n0,restrict=on
# needs: forebay fake-cuda s3-contract
# timeout: 900
. /lab/guest/forebay.sh
. /lab/guest/rdma.sh
. /lab/guest/s3.sh
rdma_up rxe
gateway 9000 --rdma
# The software GPU's library is looked for beside it.
cp /payload/s3-contract /tmp/contract
cp /payload/fake-cuda /tmp/libfake_cuda.so

sent=$(packets) tcp=$(tcp_bytes)
quiet env FOREBAY_TEST_S3=s3://bucket /tmp/contract --test-threads 1
sed 's/^/    /' <<<"$said"
tests=$(/tmp/contract --list 2>/dev/null | grep -c ': test$')
grep -q "^test result: ok. $tests passed; 0 failed; 0 ignored" <<<"$said" || fail "not all of $tests tests"
sent=$(($(packets) - sent)) tcp=$(($(tcp_bytes) - tcp))
echo "  $sent RDMA packets, $tcp bytes of TCP"
[ $((sent * 4096)) -ge 100000000 ] || fail "only $sent RDMA packets"
# Requests and replies, of which there are thousands.
[ $tcp -lt $((sent * 4096 / 4)) ] || fail "$tcp bytes went by TCP"
