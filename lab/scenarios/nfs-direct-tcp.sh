# proves: forebay's own client reads and writes files of Linux's NFS server by URL over TCP, in versions 3, 4.0, 4.1 and 4.2,
#   without a mount; every byte is compared, and the server counted them. Without privilege only exports with `insecure`.
#   With FOREBAY_NFS=tcp files on a mount are read so, too, beside the kernel's client; without it nothing connects to a mount's server.
# kernel: debian
# needs: forebay fake-cuda
# timeout: 300
. /lab/guest/forebay.sh
. /lab/guest/nfs.sh
. /lab/guest/direct.sh
address=127.0.0.1 size=5000003 bench_size=4000000
pattern /tmp/source $size direct
install -d -m 777 /tmp/copies
call_size=1048576 nfs_server tcp-only
cp /tmp/source /export/tmp/source
for version in $versions; do
    say "NFS $version over TCP"
    copied tcp "$version" gpu
    benched tcp "$version"
done
probed tcp

for version in $versions; do
    say "a mount of $version, over TCP beside it"
    beside_mount "$version"
done

say "without privilege"
must_fail nobody forebay cp "$(url 4.1 source)" /tmp/copies/copy
grep -q 'add `insecure` to the export' <<<"$said" || fail "it does not say what to do: $said"
exported rw,insecure >/etc/exports
exportfs -ra
copied tcp 4.1 nobody
copied tcp 3 nobody
