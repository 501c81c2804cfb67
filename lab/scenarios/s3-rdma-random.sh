# proves: ten minutes of objects by RDMA over soft RoCE (rxe), in which at random times the gateway or the client is killed, or the
#   link is down for 2 s: no wrong byte, no copy that hangs, no memory left registered.
# kernel: debian
# memory: 2G
# qemu: -device virtio-net-pci,netdev=n0,romfile= -netdev user,id=n0,restrict=on
# needs: forebay
# timeout: 1200
. /lab/guest/forebay.sh
. /lab/guest/rdma.sh
. /lab/guest/s3.sh
rdma_up rxe
. /lab/guest/faults.sh
gateway 9000 --rdma
pattern /tmp/source 40000003
cp /tmp/source /srv/bucket/object
RANDOM=${SEED:-41}
until=$((SECONDS + 600)) rounds=0 failed=0
while [ $SECONDS -lt $until ]; do
    wishes=(require prefer)
    wish=${wishes[RANDOM % 2]}
    ways=("s3://bucket/object /tmp/copy" "/tmp/source s3://bucket/new")
    way=${ways[RANDOM % 2]}
    faults=(gateway client link)
    fault=${faults[RANDOM % 3]}
    rm -f /tmp/copy /srv/bucket/new
    # shellcheck disable=SC2086 # two words
    env FOREBAY_S3_RDMA=$wish forebay cp $way >/tmp/copy.txt 2>&1 &
    copy=$!
    sleep 0.$((RANDOM % 10))$((RANDOM % 10))
    case $fault in
        gateway) killed ;;
        client) kill -9 $copy 2>/dev/null || true ;;
        link) link_cut ;;
    esac
    waited 100
    # What has its name is whole.
    for file in /tmp/copy /srv/bucket/new; do
        [ ! -e $file ] || same /tmp/source $file
    done
    [ $status = 0 ] || failed=$((failed + 1))
    if [ $status != 0 ] && [ $wish = prefer ] && [ $fault != client ]; then
        fail "round $rounds, $fault, $way: $(cat /tmp/copy.txt)"
    fi
    rounds=$((rounds + 1))
done
echo "  $rounds rounds, $failed copies ended with an error"
[ $rounds -ge 20 ] || fail "only $rounds rounds"
# A gateway that found no NIC while the link was down looks again half a minute later.
for _ in $(seq 60); do
    ! by require forebay cp s3://bucket/object /tmp/copy >/tmp/copy.txt 2>&1 || break
    sleep 1
done
goes_on
same /tmp/source /tmp/copy
kill -9 $gateway
wait $gateway 2>/dev/null || true
nothing_registered
