# shellcheck shell=bash
# What scenarios that move bytes with forebay share. Its binary is slow to load from a share: it is copied once.

cp /payload/forebay /usr/local/bin/forebay
if [ -e /payload/fake-cuda ]; then
    cp /payload/fake-cuda /tmp/libfake_cuda.so
    # The software GPU: device memory that only the driver's copies reach.
    gpu() { FOREBAY_LIBCUDA=/tmp/libfake_cuda.so "$@"; }
fi
if [ -e /payload/fake-cufile ]; then
    # In place of NVIDIA's library, for the engine `libcufile`.
    cp /payload/fake-cufile /tmp/libfake_cufile.so
    export FOREBAY_VENDOR_LIBCUFILE=/tmp/libfake_cufile.so
fi

drop_caches() {
    sync
    echo 3 >/proc/sys/vm/drop_caches
}

# engine NAME COMMAND …: runs forebay with this engine forced.
engine() {
    local name=$1
    shift
    FOREBAY_ENGINE=$name "$@"
}

# read_once NAME FILE: reads the file with the engine, in pieces that fit no page, and compares each byte.
read_once() {
    quiet engine "$1" gpu forebay verify -f "$2" -n 3
    grep -q "Data Verification Success" <<<"$said" || fail "$1, $2: $said"
    grep -q "read by $1\$" <<<"$said" || fail "$1 did not read $2: $said"
}

read_cold() {
    drop_caches
    read_once "$@"
    echo "  $1: read cold, compared"
}

read_by() {
    drop_caches
    read_once "$@"
    read_once "$@"
    echo "  $1: read cold and warm, compared"
}

# copied_by NAME FILE COPY: copies through the engine, and compares with what the kernel's own reads give.
copied_by() {
    local name=$1 from=$2 to=$3
    quiet engine "$name" gpu forebay cp --verify "$from" "$to"
    grep -q "write  $name\( (.*)\)\?: [0-9]" <<<"$said" || fail "$name did not write it: $said"
    drop_caches
    same "$from" "$to"
    echo "  $name: copied, compared: $(sed -n 's/^  write *//p' <<<"$said")"
}

# on_host COMMAND …: without a GPU, so that memory is the host's.
on_host() { FOREBAY_LIBCUDA=/nonexistent "$@"; }
