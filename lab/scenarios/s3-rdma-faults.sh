# proves: objects by RDMA over soft RoCE (rxe) amid faults: the gateway or the client is killed while bytes move, the link is down
#   for 2 s, the gateway may lock too little memory. All bytes are compared, nothing hangs, reads by RDMA go on, and no memory
#   stays registered.
# kernel: debian
# memory: 2G
# qemu: -device virtio-net-pci,netdev=n0,romfile= -netdev user,id=n0,restrict=on
# needs: forebay
# timeout: 600
. /lab/guest/forebay.sh
. /lab/guest/rdma.sh
. /lab/guest/s3.sh
rdma_up rxe
. /lab/guest/faults.sh
gateway 9000 --rdma
pattern /tmp/source 60000007
cp /tmp/source /srv/bucket/object
goes_on

say "the gateway is killed amid a read, and comes back"
begun by require forebay cp s3://bucket/object /tmp/copy
killed
waited 60
[ $status != 0 ] || same /tmp/source /tmp/copy
echo "  by require: exit code $status: $(tail -n 1 /tmp/copy.txt)"
goes_on
begun by prefer forebay cp s3://bucket/object /tmp/copy --verify
killed
ended 90
same /tmp/source /tmp/copy
echo "  by prefer: compared: $(grep -o "[0-9]* bytes by .*" /tmp/copy.txt | head -n 1)"
goes_on

say "the gateway is killed amid a write, and comes back"
begun by require forebay cp /tmp/source s3://bucket/new
killed
waited 60
if [ $status = 0 ]; then
    same /tmp/source /srv/bucket/new
else
    [ ! -e /srv/bucket/new ] || fail "an object is there that was not written: $(cat /tmp/copy.txt)"
fi
echo "  by require: exit code $status: $(tail -n 1 /tmp/copy.txt)"
quiet by prefer forebay cp /tmp/source s3://bucket/new
same /tmp/source /srv/bucket/new

say "the client is killed with memory open"
for what in "s3://bucket/object /tmp/copy" "/tmp/source s3://bucket/killed"; do
    # shellcheck disable=SC2086 # two words
    begun env FOREBAY_S3_RDMA=require forebay cp $what
    kill -9 $copy
    wait $copy 2>/dev/null || true
    [ ! -e /srv/bucket/killed ] || fail "an object is there that was not written"
    kill -0 $gateway || fail "the gateway: $(cat /tmp/gateway.txt)"
    goes_on
done

say "the link is down for 2 s"
begun by prefer forebay cp s3://bucket/object /tmp/copy --verify
link_cut
ended 90
same /tmp/source /tmp/copy
echo "  compared: $(grep -o "[0-9]* bytes by .*" /tmp/copy.txt | head -n 1)"
goes_on

say "a short object says by which way it went"
head -c 1000003 /tmp/source >/tmp/short
moved rdma 1000003 by require forebay cp /tmp/short s3://bucket/short
grep -q "1000003 bytes by RDMA from host memory: S3 by RDMA, rc1" <<<"$said" || fail "no word of the way: $said"
same /tmp/short /srv/bucket/short

say "a gateway that may lock 1 MiB"
kill -9 $gateway
wait $gateway 2>/dev/null || true
chmod 666 /dev/infiniband/rdma_cm /dev/infiniband/uverbs*
chown -R 65534:65534 /srv
(
    ulimit -l 1024
    exec setpriv --reuid 65534 --regid 65534 --clear-groups forebay serve s3 /srv --listen $address:9001 --leave-time 0 --rdma
) >/tmp/gateway.txt 2>&1 &
gateway=$!
for _ in $(seq 300); do
    ! (exec 3<>"/dev/tcp/$address/9001") 2>/dev/null || break
    kill -0 $gateway 2>/dev/null || fail "the gateway: $(cat /tmp/gateway.txt)"
    sleep 0.1
done
export AWS_ENDPOINT_URL=http://$address:9001
must_fail by require forebay cp s3://bucket/object /tmp/copy
moved http 60000007 by prefer forebay cp s3://bucket/object /tmp/copy
same /tmp/source /tmp/copy
grep -q "cannot register memory" /tmp/gateway.txt || fail "the gateway has no reason: $(cat /tmp/gateway.txt)"

say "what is left"
kill -9 $gateway
wait $gateway 2>/dev/null || true
nothing_registered
