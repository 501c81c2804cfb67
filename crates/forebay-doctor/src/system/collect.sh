# Prints what `forebay doctor --server` looks at of an NFS server, and writes nothing. For any sh, of root or not.
# The first character of a line says what it is:
#   >PATH           a file; its lines follow, each behind a blank      =PATH TAB TEXT    a file of one line
#   @PATH TAB PATH  a symbolic link and where it leads                 /PATH             a folder
#   !PATH           a file that this user may not read                 .                 the end
LC_ALL=C
export LC_ALL

# Files of one line, as sysfs has them: no program is started for them.
line() {
    for file; do
        [ -f "$file" ] && [ -r "$file" ] && read -r text <"$file" 2>/dev/null && printf '=%s\t%s\n' "$file" "$text"
    done
}

# Files of any length.
whole() {
    for file; do
        if [ -f "$file" ] && [ -r "$file" ]; then
            printf '>%s\n' "$file"
            sed 's/^/ /' "$file" 2>/dev/null
            # The last line may have no end; a reader skips empty lines.
            echo
        elif [ -e "$file" ]; then
            printf '!%s\n' "$file"
        fi
    done
}

# said NAME COMMAND …: what a command prints, as a file; nothing where it fails.
said() {
    name=$1
    shift
    text=$("$@" 2>/dev/null) || return 1
    printf '>%s\n' "$name"
    printf '%s\n' "$text" | sed 's/^/ /'
}

drive() {
    disk=$(readlink -f "$1") || return 0
    printf '@%s\t%s\n/%s\n' "$1" "$disk" "$disk"
    read -r number <"$disk/dev" && printf '@%s\t%s\n' "/sys/dev/block/$number" "$disk"
    line "$disk/dev" "$disk/partition" "$disk/queue/scheduler" "$disk/queue/read_ahead_kb" "$disk/loop/backing_file"
    for member in "$disk"/slaves/*; do
        [ ! -e "$member" ] || printf '/%s\n' "$member"
    done
}

pci() {
    case $(cat "$1/class") in
        0x0108* | 0x02*) line "$1/class" "$1/vendor" "$1"/current_link_* "$1"/max_link_* ;;
    esac
}

rdma() {
    line "$1/node_type" "$1/parent" "$1/device/numa_node" "$1/device/vendor"
    for interface in "$1"/device/net/*; do
        [ ! -e "$interface" ] || printf '/%s\n' "$interface"
    done
    for port in "$1"/ports/*; do
        line "$port/state" "$port/phys_state" "$port/link_layer" "$port/gid_attrs/ndevs/0"
        line "$port"/counters/* "$port"/hw_counters/*
        for gid in "$port"/gids/*; do
            read -r text <"$gid" || continue
            # Most of 256 are not set.
            [ "$text" != 0000:0000:0000:0000:0000:0000:0000:0000 ] || [ "${gid##*/}" = 0 ] || continue
            line "$gid" "$port/gid_attrs/types/${gid##*/}"
        done
    done
}

whole /proc/self/mountinfo /proc/self/status /proc/meminfo /proc/modules /proc/cmdline /proc/uptime
whole /proc/fs/nfsd/portlist /proc/fs/nfsd/threads /proc/fs/nfsd/pool_stats /proc/net/rpc/nfsd /var/lib/nfs/etab
whole /etc/exports /etc/exports.d/*.exports /etc/nfs.conf /etc/nfs.conf.d/*.conf /etc/fstab
whole /etc/modules /etc/modules-load.d/*.conf /usr/lib/modules-load.d/*.conf /etc/rdma/modules/*
line /proc/sys/kernel/osrelease /proc/sys/kernel/arch /proc/sys/kernel/hostname
for one in /sys/class/block/*; do [ ! -e "$one" ] || drive "$one"; done
for one in /sys/bus/pci/devices/*; do [ ! -e "$one" ] || pci "$one"; done
for one in /sys/class/infiniband/*; do [ ! -e "$one" ] || rdma "$one"; done
for one in /sys/class/net/*; do
    line "$one/mtu" "$one/operstate" "$one"/ecn/roce_np/enable/* "$one"/ecn/roce_rp/enable/*
    said "/sos_commands/networking/ethtool_-a_${one##*/}" ethtool -a "${one##*/}"
done
said /sos_commands/kernel/dmesg dmesg || echo '!/sos_commands/kernel/dmesg'
echo .
