# proves: verbs over soft iWARP (siw) move bytes (Debian's kernels have no siw); forebay's own connections and
#   regions over it: compared, and refused when they end.
# kernel: p2p
# qemu: -device virtio-net-pci,netdev=n0,romfile= -netdev user,id=n0,restrict=on
# needs: verbs-loop
# timeout: 200
. /lab/guest/rdma.sh
rdma_up siw
for test in ib_write_bw ib_read_bw; do
    both $test -d lab0 -R -s 65536 -n 100 -F -- $test -d lab0 -R -s 65536 -n 100 -F $address
done
both rping -s -a $address -C 10 -V -S 4096 -v -- rping -c -a $address -C 10 -V -S 4096
[ "$(grep -c 'server ping data' /tmp/server.txt)" = 10 ] || fail "rping: $(tail -n 3 /tmp/server.txt)"

say "forebay's own connections"
. /lab/guest/verbs.sh
compared env
told "^dma-buf: cannot register a dma-buf: Operation not supported"
told "^window: the device has no windows"
told "^paired: cannot pair in band: .* (iWARP)"
# siw tells a connection nothing of its device's removal (6.12): that is looked at over rxe.
rdma link delete lab0
refused NoDevice verbs_loop $address
