# shellcheck shell=bash
# An NFS server of this guest's own, by forebay's own client: by URL, without a mount. After forebay.sh, rdma.sh and nfs.sh.

versions="3 4.0 4.1 4.2"

if [ -e /payload/nfs-loop ]; then
    cp /payload/nfs-loop /usr/local/bin/nfs_loop
fi

# nobody COMMAND …: without privilege, and with the locked memory that systems usually allow.
nobody() { (ulimit -l 8192 && setpriv --reuid 65534 --regid 65534 --clear-groups "$@"); }

# url VERSION NAME: of a file on the tmpfs export.
url() {
    case $1 in
        3) echo "nfs://$address/export/tmp/$2?version=3" ;;
        *) echo "nfs://$address/tmp/$2?version=$1" ;;
    esac
}

# server_count read|write: bytes that the server read or wrote for its clients, whoever they are.
server_count() { awk -v field="$([ "$1" = read ] && echo 2 || echo 3)" '$1 == "io" { print $field }' /proc/net/rpc/nfsd; }

# kernel_calls: calls of this host's kernel to NFS servers.
kernel_calls() { awk '$1 == "rpc" { print $2 }' /proc/net/rpc/nfs; }

# placed read|write: operations by which the server itself put bytes into a client's memory, or fetched them from there.
placed() {
    case $1 in
        read) cat /proc/sys/sunrpc/svc_rdma/rdma_stat_write ;;
        write) cat /proc/sys/sunrpc/svc_rdma/rdma_stat_read ;;
    esac
}

# packets: what the RDMA device sent; siw counts none.
packets() { cat /sys/class/infiniband/lab0/ports/1/hw_counters/sent_pkts 2>/dev/null || echo 0; }

# lo_bytes: what went over the loopback interface: TCP, and siw, which is TCP below.
lo_bytes() { cat /sys/class/net/lo/statistics/rx_bytes; }

# moved PROTO read|write BYTES COMMAND …: runs it. The server moved all the bytes, by that transport, and this host's kernel asked
# it for nothing: no mount, and so no page cache of this side.
moved() {
    local proto=$1 way=$2 bytes=$3 io kernel ops sent lo
    shift 3
    ! grep -q ' nfs4\? ' /proc/mounts || fail "there is a mount: $(grep ' nfs4\? ' /proc/mounts)"
    io=$(server_count "$way") kernel=$(kernel_calls) lo=$(lo_bytes) ops=0 sent=0
    [ "$proto" = tcp ] || ops=$(placed "$way") sent=$(packets)
    quiet "$@"
    io=$(($(server_count "$way") - io)) kernel=$(($(kernel_calls) - kernel)) lo=$(($(lo_bytes) - lo))
    [ "$proto" = tcp ] || ops=$(($(placed "$way") - ops)) sent=$(($(packets) - sent))
    echo "  $proto, $way of $bytes: server $io, by $ops RDMA operations, in $sent RDMA packets, loopback $lo; $kernel calls of the kernel"
    [ $io -ge "$bytes" ] || fail "the server moved only $io bytes"
    [ $kernel = 0 ] || fail "the kernel's client made $kernel calls"
    case $proto in
        tcp) [ $lo -ge "$bytes" ] || fail "only $lo bytes went over TCP" ;;
        siw)
            [ $((ops * 1048576)) -ge "$bytes" ] || fail "only $ops RDMA operations"
            [ $lo -ge "$bytes" ] || fail "only $lo bytes went over siw"
            ;;
        rxe)
            [ $((ops * 1048576)) -ge "$bytes" ] || fail "only $ops RDMA operations"
            [ $((sent * 4096)) -ge "$bytes" ] || fail "only $sent packets"
            [ $lo -lt $((bytes / 10)) ] || fail "$lo bytes went over the loopback interface"
            ;;
    esac
}

# by PROTO COMMAND …: forebay's own client, by that transport.
by() {
    local proto=$1
    shift
    case $proto in
        tcp) FOREBAY_NFS=tcp "$@" ;;
        *) FOREBAY_NFS=rdma "$@" ;;
    esac
}

# copied PROTO VERSION [COMMAND …]: `forebay cp` by URL, compared with the server's own file.
copied() {
    local proto=$1 version=$2 over=RDMA
    shift 2
    [ "$proto" != tcp ] || over=TCP
    rm -f /tmp/copies/copy
    moved "$proto" read "$size" by "$proto" "$@" forebay cp "$(url "$version" source)" /tmp/copies/copy
    grep -qF "NFS v$version over $over, by forebay's own client" <<<"$said" || fail "cp did not say NFS $version over $over: $said"
    same /export/tmp/source /tmp/copies/copy
}

# benched PROTO VERSION: `forebay bench` writes its pattern by URL and verifies it, and the server's file has it, and no more.
benched() {
    head -c $((bench_size + 11)) /dev/zero >/export/tmp/bench
    moved "$1" write $bench_size by "$1" forebay bench -P "$(url "$2" bench)" -I 1 -i 300K -s $bench_size -w 2 -V --overwrite
    [ "$(grep -c "^\(write\|read\) GPUD, verified: " <<<"$said")" = 2 ] || fail "not verified: $said"
    [ "$(stat -c %s /export/tmp/bench)" = $((bench_size + 11)) ] || fail "bench changed the length"
    tail -c 11 /export/tmp/bench | cmp -n 11 - /dev/zero || fail "bench wrote behind its end"
    ! cmp -s -n $bench_size /export/tmp/bench /dev/zero || fail "nothing was written"
}

# ranged PROTO VERSION [COMMAND …]: odd offsets, lengths and addresses between guard bytes, read and written.
ranged() {
    local proto=$1 version=$2 kind=rdma
    shift 2
    [ "$proto" != tcp ] || kind=tcp
    moved "$proto" read "$size" "$@" nfs_loop $kind ranges "$(url "$version" source)" /tmp/source
    sed 's/^/    /' <<<"$said"
    cp /tmp/source /export/tmp/writes
    cp /tmp/source /tmp/shadow
    chmod 666 /export/tmp/writes /tmp/shadow
    moved "$proto" write 2000000 "$@" nfs_loop $kind writes "$(url "$version" writes)" /tmp/shadow
    sed 's/^/    /' <<<"$said"
    same /tmp/shadow /export/tmp/writes
}

# by_mount tcp|rdma VERSION: the server of a file on /mnt is found by what the kernel tells of the file, and its bytes are the mount's;
# that of one on /other, which was mounted in another network, is not looked for.
by_mount() {
    local way=Handle
    [ "$2" != 4.0 ] || way=Path
    mkdir /export/tmp/below
    pattern /export/tmp/below/mounted 3000001 "mounted $2"
    quiet nfs_loop "$1" mount /mnt/below/mounted
    sed 's/^/    /' <<<"$said"
    grep -q "^mounted: $way(" <<<"$said" || fail "not by $way"
    must_fail nfs_loop "$1" mount /other/below/mounted
    grep -q "another network namespace" <<<"$said" || fail "another reason: $said"
    rm -r /export/tmp/below
}

# unasked VERSION: without FOREBAY_NFS a mount over TCP is the kernel's alone: nothing connects to its server.
unasked() {
    local calls
    drop_caches
    FOREBAY_NFS=off quiet gpu forebay cp /mnt/beside /tmp/copies/copy
    drop_caches
    calls=$(awk '$1 == "net" { print $5 }' /proc/net/rpc/nfsd)
    quiet gpu forebay cp /mnt/beside /tmp/copies/copy
    calls=$(($(awk '$1 == "net" { print $5 }' /proc/net/rpc/nfsd) - calls))
    same /export/tmp/beside /tmp/copies/copy
    [ $calls = 0 ] || fail "$calls connections to the server of a mount of $1"
}

# beside_mount VERSION: a file on a mount is read by forebay's own connections beside the kernel, when what this host has written and not
# sent yet is on the server; the kernel's client reads what the page cache has, and with FOREBAY_NFS=off all.
beside_mount() {
    local kernel io
    nfs_mount tcp "$1" tmp
    pattern /mnt/beside $size "beside $1"
    drop_caches
    exec 7<>/mnt/beside
    printf 'written, not sent' >&7
    rm -f /tmp/copies/copy
    kernel=$(nfs_bytes read) io=$(server_count read)
    FOREBAY_NFS=tcp quiet gpu forebay cp /mnt/beside /tmp/copies/copy
    kernel=$(($(nfs_bytes read) - kernel)) io=$(($(server_count read) - io))
    exec 7>&-
    same /export/tmp/beside /tmp/copies/copy
    sed -n 's/^  read/    read/p' <<<"$said"
    echo "  beside a mount of $1: the server read $io bytes, the kernel's client $kernel of them"
    grep -q '^  read .* by request' <<<"$said" || fail "nothing came by TCP beside the mount: $said"
    [ $io -ge $((size - 65536)) ] || fail "the server moved only $io bytes"
    [ $kernel -le 1048576 ] || fail "the kernel's client read $kernel bytes"
    drop_caches
    kernel=$(nfs_bytes read)
    FOREBAY_NFS=off quiet gpu forebay cp /mnt/beside /tmp/copies/copy
    [ $(($(nfs_bytes read) - kernel)) -ge $size ] || fail "not by the kernel's client: $said"
    ! grep -q 'by request' <<<"$said" || fail "by TCP beside the mount: $said"
    unasked "$1"
    umount /mnt
    rm /export/tmp/beside
}

# probed PROTO: what `forebay nfs probe` says, also as JSON: all versions, and RDMA where there is a device.
probed() {
    local version
    quiet forebay nfs probe "$address:/tmp/source" --json /tmp/probe.json
    sed 's/^/    /' <<<"$said"
    # The server's root of version 4 is another than that of version 3.
    for version in 4.0 4.1; do
        grep -q "^v$version  *yes; reads of .* file of $size bytes" <<<"$said" || fail "probe: no $version"
    done
    [ "$(grep -c "^tcp .* connections\?: .*($size bytes" <<<"$said")" = 3 ] || fail "probe: not three rates of TCP"
    if [ "$1" = tcp ]; then
        grep -q '^rdma  no: ' <<<"$said" || fail "probe: RDMA without a device?"
    else
        grep -q "^rdma .* 4 connections: .*($size bytes" <<<"$said" || fail "probe: no rate by RDMA"
        # The device itself was asked, once it was opened.
        grep -q "^nic   lab0 (.*) has .*memory windows of type 2B; regions of at most [0-9]* bytes" <<<"$said" || fail "probe: no NIC"
        python3 -c '
import json
report = json.load(open("/tmp/probe.json"))
nic, = report["nics"]["list"]
assert nic["name"] == "lab0" and nic["used"] and nic["region_bytes"] > 1 << 20 and nic["regions"] > 0, nic
assert report["rdma"]["rate"]["bytes"] == '"$size"' and report["gpus"]["list"] == [], report
' || fail "probe: $(cat /tmp/probe.json)"
    fi
}

# reported: the tables of `forebay report nfs-rdma`, of a file by URL and of a mount, both by RDMA.
reported() {
    head -c 16777216 /dev/urandom >/export/tmp/large
    FOREBAY_NFS=rdma gpu forebay report nfs-rdma "$(url 4.1 large)" --quick --seconds 0.1 -o /tmp/by-url ||
        fail "report of a URL: $?"
    grep -m 1 "NFS v4.1 over RDMA, by forebay's own client" /tmp/by-url/report.md || fail "$(cat /tmp/by-url/report.md)"
    nfs_mount rdma 4.0 tmp
    gpu forebay report nfs-rdma /mnt --quick --seconds 0.1 --size 16M -o /tmp/by-mount || fail "report of a mount: $?"
    grep -m 1 "/mnt is an NFS mount (proto=rdma)" /tmp/by-mount/report.md || fail "$(cat /tmp/by-mount/report.md)"
    umount /mnt
}

# direct_all rxe|siw: everything that is looked at over RDMA.
direct_all() {
    local version
    size=5000003 bench_size=4000000
    pattern /tmp/source $size direct
    install -d -m 777 /tmp/copies
    rdma_up "$1"
    call_size=1048576 nfs_server
    grep -q '^rdma 20049' /proc/fs/nfsd/portlist || fail "no RDMA: $(cat /proc/fs/nfsd/portlist)"
    cp /tmp/source /export/tmp/source
    for version in $versions; do
        say "NFS $version over $1"
        copied "$1" "$version" gpu
        benched "$1" "$version"
        ranged "$1" "$version"
    done
    probed "$1"
    say "without privilege, with 8 MiB of locked memory"
    chmod 666 /dev/infiniband/rdma_cm /dev/infiniband/uverbs*
    # Lookups go over TCP, where an unprivileged port needs it.
    exported rw,insecure >/etc/exports
    exportfs -ra
    copied "$1" 4.1 nobody
    copied "$1" 3 nobody
    ranged "$1" 4.0 nobody
    say "the tables of forebay report"
    reported
}
