# proves: a drive over NVMe fabrics (nvmet, RDMA on rxe) is written and read by every engine, raw, ext4 and xfs.
# kernel: debian
# drives: disk=512M
# qemu: -device virtio-blk-pci,drive=disk,serial=disk
# qemu: -device virtio-net-pci,netdev=n0,romfile= -netdev user,id=n0,restrict=on
# needs: forebay fake-cuda
# timeout: 240
. /lab/guest/forebay.sh
. /lab/guest/rdma.sh
rdma_up rxe
modprobe -a nvmet nvmet-rdma nvme-rdma
mount -t configfs configfs /sys/kernel/config 2>/dev/null || true
target=/sys/kernel/config/nvmet
mkdir $target/subsystems/lab $target/subsystems/lab/namespaces/1 $target/ports/1
echo 1 >$target/subsystems/lab/attr_allow_any_host
drive disk >$target/subsystems/lab/namespaces/1/device_path
echo 1 >$target/subsystems/lab/namespaces/1/enable
echo rdma >$target/ports/1/addr_trtype
echo ipv4 >$target/ports/1/addr_adrfam
echo $address >$target/ports/1/addr_traddr
echo 4420 >$target/ports/1/addr_trsvcid
ln -s $target/subsystems/lab $target/ports/1/subsystems/lab
nvme connect -t rdma -a $address -s 4420 -n lab --hostnqn=nqn.2014-08.org.nvmexpress:uuid:6f2c1a52-9f0e-4d8f-8f3b-2f6c5d1e7a01
for _ in $(seq 50); do
    [ ! -b /dev/nvme0n1 ] || break
    sleep 0.1
done
[ "$(cat /sys/class/nvme/nvme0/transport)" = rdma ] || fail "not over RDMA"

say "raw"
quiet gpu forebay bench -f /dev/nvme0n1 -i 256K -w 2 -s 8M -I 1 -V --yes-destroy /dev/nvme0n1
quiet gpu forebay bench -f /dev/nvme0n1 -i 64K -w 2 -s 8M -I 0 -V --strict staged
grep -q "staged:.* O_DIRECT" <<<"$said" || fail "$said"
echo "  bench: written and read, verified"
pattern /tmp/a 3000001 nvme
for type in ext4 xfs; do
    say $type
    make_fs $type /dev/nvme0n1
    copied_by staged /tmp/a /mnt/b
    read_by staged /mnt/b
    sleep 1.2
    read_by mapped /mnt/b
    umount /mnt
done
nvme disconnect -n lab
