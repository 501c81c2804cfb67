//! File systems by the numbers that `statfs` has for them.

/// Of the file system that the kernel keeps the bytes of block devices in.
pub const BLOCK_DEVICE: i64 = 0x6264_6576;

/// Whether a file keeps its inode number as long as it is there. These number a file when they look it up: FUSE, CIFS (before and
/// after SMB 2), FAT, exFAT, VirtualBox's shared folders.
pub fn keeps_inode_numbers(magic: i64) -> bool {
    !matches!(magic, 0x6573_5546 | 0xFF53_4D42 | 0xFE53_4D42 | 0x4D44 | 0x2011_BAB0 | 0x786F_4256)
}

/// The name of the file system with this magic number, as `mount` shows it.
pub fn name(magic: i64) -> &'static str {
    match magic {
        0xEF53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683E => "btrfs",
        0x0102_1994 => "tmpfs",
        0x8584_58F6 => "ramfs",
        0x9584_58F6 => "hugetlbfs",
        0x794C_7630 => "overlay",
        0x6969 => "nfs",
        0x6573_5546 => "fuse",
        0x2FC1_2FC1 => "zfs",
        0xF2F5_2010 => "f2fs",
        0x0BD0_0BD0 => "lustre",
        0x6462_671F => "devtmpfs",
        0x9FA0 => "proc",
        0x6265_6572 => "sysfs",
        BLOCK_DEVICE => "block device",
        _ => "unknown",
    }
}
