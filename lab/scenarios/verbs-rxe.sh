# proves: verbs over soft RoCE (rxe) move bytes on Debian's own kernel: reads, writes, sends, atomics, rdma_cm; forebay's
#   own connections, by rdma_cm and paired in band, windows and regions over it: compared, refused when they end, and
#   named when missing.
# kernel: debian
# qemu: -device virtio-net-pci,netdev=n0,romfile= -netdev user,id=n0,restrict=on
# needs: verbs-loop
# timeout: 300
. /lab/guest/rdma.sh
rdma_up rxe
both ibv_rc_pingpong -g 1 -d lab0 -n 100 -c -- ibv_rc_pingpong -g 1 -d lab0 -n 100 -c $address
for test in ib_write_bw ib_read_bw ib_send_bw; do
    both $test -d lab0 -x 1 -s 65536 -n 100 -F -- $test -d lab0 -x 1 -s 65536 -n 100 -F $address
done
both ib_atomic_bw -d lab0 -x 1 -n 100 -F -- ib_atomic_bw -d lab0 -x 1 -n 100 -F $address
# The client says 0 even if bytes went wrong: the server's word counts.
both rping -s -a $address -C 10 -V -S 4096 -v -- rping -c -a $address -C 10 -V -S 4096
[ "$(grep -c 'server ping data' /tmp/server.txt)" = 10 ] || fail "rping: $(tail -n 3 /tmp/server.txt)"

say "forebay's own connections"
. /lab/guest/verbs.sh
compared env
told "^dma-buf: cannot register a dma-buf: Operation not supported"
told "^window: bound 11 times .* compared"
told "^window invalidated: .* refused .* unchanged"
told "^invalidated by message: .* refused .* unchanged"
paired_in_band
say "without privilege"
chmod 666 /dev/infiniband/rdma_cm /dev/infiniband/uverbs*
compared nobody
verbs_missing
verbs_removed
