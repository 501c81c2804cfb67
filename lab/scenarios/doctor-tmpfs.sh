# proves: on kernel 6.1, whose tmpfs has no O_DIRECT, `forebay doctor` says so, and the disk in memory that its fix makes has it.
# kernel: debian-6.1
# memory: 1G
# needs: forebay fake-cuda
# timeout: 120
. /lab/guest/forebay.sh
. /lab/guest/doctor.sh
mkdir /ram
mount -t tmpfs tmpfs /ram
! dd if=/dev/zero of=/ram/x bs=4096 count=1 oflag=direct 2>/dev/null || fail "tmpfs takes O_DIRECT on $(uname -r)"
doctor /ram
found tmpfs-direct slower "osrelease: 6.1."
type_fix tmpfs-direct
dd if=/dev/zero of=/mnt/forebay-ram/x bs=4096 count=1 oflag=direct 2>/dev/null || fail "the disk in memory takes no O_DIRECT"
healthy /mnt/forebay-ram
