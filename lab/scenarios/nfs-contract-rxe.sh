# proves: the contract of sources holds over a real NFS server by RDMA: the same suite as for every source, over files of Linux's
#   server by URL (NFS 3 and 4.1) through forebay's own client and soft RoCE, into host memory, the software GPU and memory in a
#   BAR; written bytes are compared on the server itself, which fetched and placed the bytes by RDMA.
# kernel: debian
# memory: 2G
# qemu: -device virtio-net-pci,netdev=n0,romfile= -netdev user,id=n0,restrict=on
# needs: forebay fake-cuda nfs-contract
# timeout: 900
. /lab/guest/forebay.sh
. /lab/guest/rdma.sh
. /lab/guest/nfs.sh
. /lab/guest/direct.sh
rdma_up rxe
call_size=1048576 nfs_server
grep -q '^rdma 20049' /proc/fs/nfsd/portlist || fail "no RDMA: $(cat /proc/fs/nfsd/portlist)"
# Each file is opened anew, by three connections in version 3: in a minute that is more than there are ports below 1024.
exported rw,insecure >/etc/exports
exportfs -ra
# The software GPU's library is looked for beside it.
cp /payload/nfs-contract /tmp/contract

# contract VERSION: every test of the suite, over files of the tmpfs export.
contract() {
    local fetched tests
    say "NFS $1"
    fetched=$(placed write)
    moved rxe read 100000000 env FOREBAY_NFS=rdma FOREBAY_TEST_NFS="$(url "$1" '')" FOREBAY_TEST_DIR=/export/tmp \
        ./contract --test-threads 1
    tests=$(./contract --list 2>/dev/null | grep -c ': test$')
    sed 's/^/    /' <<<"$said"
    grep -q "^test result: ok. $tests passed; 0 failed; 0 ignored" <<<"$said" || fail "not all of $tests tests"
    fetched=$(($(placed write) - fetched))
    echo "  the server fetched the written bytes by $fetched RDMA operations"
    [ $fetched -gt 100 ] || fail "writes did not go by RDMA"
    [ -z "$(ls /export/tmp)" ] || fail "left there: $(ls /export/tmp)"
}

contract 3
contract 4.1
