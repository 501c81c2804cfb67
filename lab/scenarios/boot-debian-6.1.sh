# proves: Debian's 6.1 kernel boots and forebay runs in the guest.
# kernel: debian-6.1
# needs: forebay
# timeout: 60

cp /payload/forebay /tmp/forebay
/tmp/forebay --version
modprobe -a ext4 xfs 2>/dev/null || true
grep -E 'ext4|xfs' /proc/filesystems
