# proves: staged, mapped, host, noop, and libcufile (over a test double of NVIDIA's library) on ext4, xfs, btrfs, tmpfs and
#   overlay: bytes verified, cold and warm.
# kernel: debian
# memory: 2G
# drives: a=1G
# qemu: -device virtio-blk-pci,drive=a,serial=a
# needs: forebay fake-cuda fake-cufile
# timeout: 400
. /lab/guest/forebay.sh
size=3000001 # no multiple of anything

# every_engine FOLDER [REFUSED …]: engines named after the folder must be refused there.
every_engine() {
    local folder=$1
    shift
    pattern "$folder/a" $size "$folder"
    copied_by staged "$folder/a" "$folder/b"
    read_by staged "$folder/b"
    sleep 1.2 # pages are pinned once the file was left alone for a second
    case " $* " in
        *" mapped "*) must_fail engine mapped gpu forebay verify -f "$folder/a" ;;
        *) read_by mapped "$folder/a" ;;
    esac
    copied_by libcufile "$folder/a" "$folder/b"
    read_by libcufile "$folder/b"
    quiet on_host engine host forebay cp "$folder/a" "$folder/c"
    grep -q "write  host:" <<<"$said" || fail "$said"
    same "$folder/a" "$folder/c"
    echo "  host: copied, compared"
    quiet forebay bench -f "$folder/a" -i 64K -w 2 -s 2M -I 0 --engine noop
    echo "  noop: runs"
    quiet gpu forebay bench -f "$folder/t" -i 12K -w 2 -s 768K -I 1 -V
    drop_caches
    quiet gpu forebay bench -f "$folder/t" -i 4K -w 2 -s 768K -I 2 -V
    echo "  bench: written and read at random places, verified"
}

for type in ext4 xfs btrfs; do
    say "$type"
    make_fs $type "$(drive a)"
    every_engine /mnt
    umount /mnt
done
say "tmpfs"
mount -t tmpfs tmpfs /mnt
every_engine /mnt
say "overlay"
mkdir /mnt/low /mnt/up /mnt/work /tmp/over
mount -t overlay -o lowerdir=/mnt/low,upperdir=/mnt/up,workdir=/mnt/work overlay /tmp/over
every_engine /tmp/over mapped
