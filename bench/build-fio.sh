#!/usr/bin/env bash
# Builds a static fio from Debian's source package into bench/bin/fio.
#
#   bench/build-fio.sh            uses the source package of the Debian release this runs on
#   KEEP=1 bench/build-fio.sh     keeps the build folder and says where it is
#   CUDA=DIR OUT=FILE bench/build-fio.sh
#                                 not static, with the engine for cuFile, into FILE: DIR has CUDA's include/ and lib/ with
#                                 libcudart.so and libcufile.so; fio's example job comes to lie beside FILE
#
# The binary carries the engines that the comparison tables need (io_uring, psync, pvsync2, mmap) and
# depends on nothing, so it can be copied to a machine where nothing can be installed. The system's apt
# configuration is not touched: deb-src lines go to a private list in the build folder.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=$(realpath -m "${OUT:-$here/bin/fio}")

say() { printf '== %s\n' "$*"; }
die() { printf 'error: %s\n' "$1" >&2; shift; for h in "$@"; do printf 'hint: %s\n' "$h" >&2; done; exit 1; }

for tool in apt-get dpkg-source gcc make strip; do
    command -v "$tool" >/dev/null || die "cannot build fio: $tool is missing" \
        "apt-get install -y dpkg-dev build-essential"
done

work=$(mktemp -d "${TMPDIR:-/tmp}/forebay-fio.XXXXXX")
if [ -n "${KEEP:-}" ]; then say "build folder: $work"; else trap 'rm -rf "$work"' EXIT; fi
chmod 755 "$work"

say "private deb-src list from the machine's own Debian sources"
mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
apt-get indextargets --format '$(ORIGIN)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)' 'Created-By: Packages' |
    while IFS='|' read -r origin uri release component; do
        case $origin in
            Debian) keyring=/usr/share/keyrings/debian-archive-keyring.gpg ;;
            Ubuntu) keyring=/usr/share/keyrings/ubuntu-archive-keyring.gpg ;;
            *) continue ;;
        esac
        [ -e "$keyring" ] && signed="[signed-by=$keyring] " || signed=
        printf 'deb-src %s%s %s %s\n' "$signed" "$uri" "$release" "$component"
    done | sort -u >"$work/sources.list"
[ -s "$work/sources.list" ] || die "apt knows no Debian or Ubuntu source" "apt-get update"

apt_options=(
    -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=-
    -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache"
    -o APT::Get::List-Cleanup=0
)
[ "$(id -u)" = 0 ] && apt_options+=(-o APT::Sandbox::User=root)
(cd "$work" && apt-get "${apt_options[@]}" -qq update && apt-get "${apt_options[@]}" -qq source --download-only fio)

say "unpack"
dsc=$(ls "$work"/fio_*.dsc)
(cd "$work" && dpkg-source --no-check --extract "$dsc" src >/dev/null)

cd "$work/src"
if [ -n "${CUDA:-}" ]; then
    say "configure: with libcufile, no other optional library"
    CUDA=$(realpath "$CUDA")
    # The libraries are those of the machine that runs it, and not all that they need has to be here.
    export CPATH=$CUDA/include LIBRARY_PATH=$CUDA/lib LDFLAGS=-Wl,--allow-shlib-undefined
    kind=(--enable-libcufile)
else
    say "configure: static, no optional library"
    kind=(--build-static)
fi
./configure "${kind[@]}" --disable-native --disable-http --disable-rados --disable-rbd --disable-rdma \
    --disable-gfapi --disable-pmem --disable-numa --disable-lex --disable-xnvme \
    --disable-libnfs --disable-libzbc >"$work/configure.log" 2>&1 ||
    { tail -n 20 "$work/configure.log" >&2; die "fio's configure failed"; }

say "make ($(nproc) jobs)"
make -j"$(nproc)" fio >"$work/make.log" 2>&1 || { tail -n 40 "$work/make.log" >&2; die "fio's build failed"; }

mkdir -p "$(dirname "$out")"
strip -s fio
install -m 755 fio "$out"
if [ -n "${CUDA:-}" ]; then
    install -m 644 examples/libcufile-cufile.fio "$(dirname "$out")"
    ls -l "$out"
    exit 0
fi

say "check"
test_file=$(mktemp "$here/bin/check.XXXXXX")
trap 'rm -f "$test_file"; [ -n "${KEEP:-}" ] || rm -rf "$work"' EXIT
head -c 8388608 /dev/urandom >"$test_file"
for engine in psync io_uring; do
    if "$out" --name=check --filename="$test_file" --rw=read --bs=1M --size=8M --readonly --thread \
        --ioengine="$engine" --direct=0 --output-format=terse --output="$work/check.txt" 2>"$work/check.err"; then
        echo "  $engine: works"
    elif [ "$engine" = io_uring ] && grep -qi 'operation not permitted' "$work/check.err" "$work/check.txt"; then
        echo "  io_uring: built in; this machine does not allow io_uring_setup"
    else
        cat "$work/check.err" "$work/check.txt" >&2
        die "fio was built but cannot read with $engine"
    fi
done
if file "$out" 2>/dev/null | grep -q 'dynamically linked'; then die "$out is not static"; fi
printf '%s: %s, %s bytes\n' "$out" "$("$out" --version)" "$(stat -c %s "$out")"
