# proves: two guests: the cable between forebay's own client and Linux's NFS server is cut and joined again, at either end (rxe:
#   the server's) or silently, or the server's RDMA device goes, under reads and writes over TCP and RDMA (rxe): all goes on with
#   the right bytes; a cut that stays is an error, in time.
# kernel: debian
# memory: 768M
# cpus: 1
# guests: 2
# needs: forebay nfs-loop
# timeout: 600
. /lab/guest/forebay.sh
. /lab/guest/rdma.sh
. /lab/guest/nfs.sh
. /lab/guest/direct.sh
. /lab/guest/restart.sh
. /lab/guest/links.sh
[ "$guest" = 1 ] || serve
wait_for 120 test -e /out/serves || fail "the server did not start"
address=10.9.0.2
for kind in tcp rdma; do
    say "$kind: a short cut"
    cut_for 3 silently $kind 4.2
    cut_for 3 there $kind 4.1
    case $kind in
        tcp) cut_for 3 here tcp 3 ;;
        rdma) cut_for 3 unplugged rdma 3 ;;
    esac
    say "$kind: longer than a silent connection is waited for, and than the server's lease"
    export NFS_LOOP_SILENCE=4
    cut_for 13 silently $kind 4.1
    unset NFS_LOOP_SILENCE
    say "$kind: for good"
    cut_for_good $kind 3
done
