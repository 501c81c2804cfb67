# proves: forebay's engine p2p reads and writes raw, ext4, xfs and overlay below one switch, strictly: no byte by another
#   engine; on tmpfs the bytes are staged.
# kernel: p2p
# memory: 2G
# drives: cmb=64M peer=512M
# topology: same-switch
# needs: forebay
# trace: pci_nvme_map_addr pci_nvme_read pci_nvme_write
# check: dma-in-bar
# timeout: 400
# quick: yes
. /lab/guest/p2p.sh
device=p2pmem:$(provider)
cp /payload/forebay .

# by_p2p TARGET FLAG …: a bench whose bytes all went by p2p, as its JSON says.
by_p2p() {
    ./forebay bench -f "$1" -d "$device" --strict p2p,all --json report.json "${@:2}"
    python3 - <<'PYTHON'
import json
for one in json.load(open("report.json"))["passes"]:
    [engine] = one["engines"]
    assert engine["engine"] == "p2p" and engine["drive"] == one["bytes"] > 0, one["engines"]
    print(f"    {one['io']}: {engine['drive']} bytes by the drive, of {one['bytes']}")
PYTHON
}

# each_way TARGET FLAG …: writes and reads, checked, of both sizes (on the caller's thread, and by lanes).
each_way() {
    local io
    for io in 64K 2M; do
        by_p2p "$1" -x 0 -w 1 -s 8M -i $io -I 1 -V "${@:2}"
        by_p2p "$1" -x 0 -w 1 -s 8M -i $io -I 0 -V "${@:2}"
    done
    # Batches go by the lanes' rings.
    by_p2p "$1" -x 6 -w 16 -s 8M -i 4K -I 0 -V "${@:2}"
}

peer=$(drive peer)
say "raw"
pattern raw 8388608
dd if=raw of="$peer" bs=1M oflag=direct status=none
each_way "$peer" --yes-destroy "$peer"
for type in ext4 xfs; do
    make_fs $type "$peer"
    for io in auto threads sqpoll; do
        say "$type, FOREBAY_IO=$io"
        FOREBAY_IO=$io each_way /mnt/file
        rm /mnt/file
    done
    say "$type: a file of no round length is copied, its tail staged"
    pattern /mnt/odd 5000001
    ./forebay cp --verify -d "$device" /mnt/odd /mnt/copy 2>&1 | tee said
    grep -q "p2p and staged" said || fail "not by p2p"
    same /mnt/odd /mnt/copy
    ./forebay verify -d "$device" -f /mnt/odd
    umount /mnt
done

say "overlay hands it on to the file system below"
make_fs xfs "$peer"
mkdir /mnt/low /mnt/up /mnt/work over
mount -t overlay -o lowerdir=/mnt/low,upperdir=/mnt/up,workdir=/mnt/work overlay over
for direction in 1 0; do
    by_p2p over/file -x 0 -w 1 -s 4M -i 1M -I $direction -V
done
say "tmpfs: the bytes are staged"
mkdir memory
mount -t tmpfs tmpfs memory
./forebay bench -f memory/file -d "$device" -x 0 -w 1 -s 1M -i 256K -I 1 -V 2>&1 | tee said
grep -q "engine .*staged: " said || fail "not staged"
grep -q "not p2p: the file is memory" said || fail "no reason"
