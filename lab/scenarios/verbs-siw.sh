# proves: verbs over soft iWARP (siw) move bytes (Debian's kernels have no siw).
# kernel: p2p
# qemu: -device virtio-net-pci,netdev=n0,romfile= -netdev user,id=n0,restrict=on
# timeout: 120
. /lab/guest/rdma.sh
rdma_up siw
for test in ib_write_bw ib_read_bw; do
    both $test -d lab0 -R -s 65536 -n 100 -F -- $test -d lab0 -R -s 65536 -n 100 -F $address
done
both rping -s -a $address -C 10 -V -S 4096 -v -- rping -c -a $address -C 10 -V -S 4096
[ "$(grep -c 'server ping data' /tmp/server.txt)" = 10 ] || fail "rping: $(tail -n 3 /tmp/server.txt)"
