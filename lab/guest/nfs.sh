# shellcheck shell=bash
# An NFS server of this guest's own, and mounts of it that go through the network card or RDMA.

# nfs_server [tcp-only]: exports /export/tmp (tmpfs) and, where the scenario has a drive disk, /export/disk (ext4).
nfs_server() {
    modprobe -a nfsd nfs nfsv3 nfsv4 rpcrdma 2>/dev/null || true
    # An NFSv4 root cannot be an overlay: a tmpfs with the exports mounted in it.
    mkdir -p /export
    mount -t tmpfs tmpfs /export
    mkdir /export/tmp /export/disk
    mount -t tmpfs tmpfs /export/tmp
    if drive disk >/tmp/drive 2>/dev/null; then make_fs ext4 "$(cat /tmp/drive)" /export/disk; fi
    exported rw >/etc/exports
    mount -t nfsd nfsd /proc/fs/nfsd
    mkdir -p /var/lib/nfs/rpc_pipefs /run/rpcbind
    rpcbind -w
    rpc.statd
    exportfs -ra
    echo 10 >/proc/fs/nfsd/nfsv4leasetime
    echo 10 >/proc/fs/nfsd/nfsv4gracetime
    # Machines with more memory take 1 MiB a call; this one would take 128 KiB.
    [ -z "${call_size:-}" ] || echo "$call_size" >/proc/fs/nfsd/max_block_size
    rpc.nfsd 4
    rpc.mountd
    [ "${1:-}" = tcp-only ] || echo "rdma 20049" >/proc/fs/nfsd/portlist 2>/dev/null || true
}

# exported OPTION[,OPTION]: lines of /etc/exports.
exported() {
    printf '%s\n' "/export *($1,no_root_squash,no_subtree_check,fsid=0)" \
        "/export/tmp *($1,no_root_squash,no_subtree_check,fsid=1)"
    ! mountpoint -q /export/disk || echo "/export/disk *($1,no_root_squash,no_subtree_check,fsid=2)"
}

# nfs_mount PROTO VERSION EXPORT [OPTIONS]: mounts it on /mnt, and looks whether it became that.
nfs_mount() {
    local options="proto=$1,vers=$2${4:+,$4}" path="/$3"
    [ "$1" = tcp ] || options+=",port=20049"
    case $2 in 3) options+=",nolock,mountproto=tcp" path="/export/$3" ;; esac
    timeout 60 mount -t nfs -o "$options" "$address:$path" /mnt || fail "mount -o $options $address:$path"
    grep ' /mnt nfs' /proc/mounts | grep "[ ,]vers=$2," | grep -q ",proto=$1," || fail "$(grep ' /mnt ' /proc/mounts)"
}

# nfs_bytes read|write: payload bytes that READ or WRITE calls of the mount on /mnt carried: not what the page cache or a
# short cut past the network gave.
nfs_bytes() {
    awk -v want="$1" '
        $1 == "device" { here = ($5 == "/mnt") }
        here && $1 ~ /^READ(_PLUS)?:$/ && want == "read" { bytes += $6 }
        here && $1 == "WRITE:" && want == "write" { bytes += $5 }
        END { print bytes + 0 }' /proc/self/mountstats
}

# wire_bytes PROTO read|write: bytes that the transport itself counted. TCP: what the loopback interface carried, headers
# and all. RDMA: what the server's RDMA writes brought; it fetches written bytes by RDMA reads, of which the client
# counts chunks, and the card packets of at most 4096 bytes.
wire_bytes() {
    case $1-$2 in
        tcp-*) cat /sys/class/net/lo/statistics/rx_bytes ;;
        rdma-read) rdma_count 17 ;;
        rdma-write) echo $(($(cat /sys/class/infiniband/lab0/ports/1/hw_counters/sent_pkts) * 4096)) ;;
    esac
}

# rdma_count FIELD: of the transport's line in mountstats. 13: read chunks; 17: bytes that came by RDMA.
rdma_count() {
    awk -v field="$1" '
        $1 == "device" { here = ($5 == "/mnt") }
        here && $1 == "xprt:" && $2 == "rdma" { count += $field }
        END { print count + 0 }' /proc/self/mountstats
}

# carried PROTO read|write COMMAND …: runs it, and wants each of the $size bytes to have gone over the wire.
carried() {
    local proto=$1 way=$2 calls wire lo
    shift 2
    calls=$(nfs_bytes "$way") wire=$(wire_bytes "$proto" "$way") lo=$(wire_bytes tcp "$way")
    "$@"
    calls=$(($(nfs_bytes "$way") - calls)) wire=$(($(wire_bytes "$proto" "$way") - wire))
    lo=$(($(wire_bytes tcp "$way") - lo))
    echo "  $proto: $calls bytes of $way calls, $wire bytes counted by the transport"
    [ $calls -ge "$size" ] || fail "only $calls bytes of $way calls"
    # An end that is shorter than RDMA's inline threshold goes within the message.
    [ $wire -ge $((size - 8192)) ] || fail "the transport counted only $wire bytes of ${way}s"
    [ "$proto" = tcp ] || [ $lo -lt $((size / 10)) ] || fail "$lo bytes went over the loopback interface"
}

# nfs_case PROTO VERSION EXPORT: forebay writes and reads there by `staged`; the wire carried every byte.
nfs_case() {
    local file=/mnt/file-$1-$2 chunks
    nfs_mount "$@"
    chunks=$(rdma_count 13)
    carried "$1" write written_by_staged "$file"
    [ "$1" = tcp ] || [ "$(rdma_count 13)" -gt "$chunks" ] || fail "no write went by RDMA"
    carried "$1" read read_cold staged "$file"
    same /tmp/source "/export/$3/file-$1-$2"
    rm "$file"
    umount /mnt
}

written_by_staged() {
    quiet engine staged gpu forebay cp /tmp/source "$1"
    grep -q "write  staged:" <<<"$said" || fail "staged did not write it: $said"
    sync -f "$1"
}

# nfs_check PROTO VERSION RSIZE WSIZE LINE …: `forebay check` says what such a mount is, moves bytes there, knows that no
# drive reaches a GPU's memory from it, and has these lines about its server.
nfs_check() {
    local line
    nfs_mount "$1" "$2" tmp "rsize=$3,wsize=$4"
    # 1: degraded, as where an emulated server is slow.
    said=$(gpu forebay check /mnt 2>&1) || [ $? = 1 ] || fail "forebay check: $said"
    for line in "NFS $2 over $1, rsize $(($3 >> 10)) KiB, wsize $(($4 >> 10)) KiB" "staged +works .*; bytes compared" \
        "placed +refused +the GPU's driver makes no dma-bufs" "p2p +refused" "kernel clients of network file systems refuse P2P memory" "/mnt: blocked \(.*nfs" "${@:5}"; do
        grep -E -m 1 "$line" <<<"$said" || fail "no \"$line\": $said"
    done
    umount /mnt
}
