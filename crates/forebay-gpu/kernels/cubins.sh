#!/bin/sh
# Assembles forebay.ptx into a cubin for each generation of GPUs, so that the driver need not compile it at the first
# use. Needs NVIDIA's ptxas of the version below; `.ci/ptxas` fetches it as a Python wheel.
#   cubins.sh           writes forebay.sm_*.cubin and cubins.sha256
#   cubins.sh --check   fails if the checked-in cubins differ from a rebuild
# A cubin serves its own capability and later ones with the same first number; GPUs without one take the PTX.
# ptxas gives the same bytes for the same input, whatever the folder or the machine; another version does not.
set -eu
cd "$(dirname "$0")"

version=12.9.86
targets="75 80 90 100 120"
ptxas=$(command -v "${PTXAS:-ptxas}" || true)
"${ptxas:-false}" --version 2>/dev/null | grep -q "V$version\$" || {
    echo "cubins.sh: ptxas $version not found; hint: PTXAS=\$(.ci/ptxas) $0" >&2
    exit 1
}

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
cp forebay.ptx "$out"
# By plain file names: some cubins note the command line.
for target in $targets; do
    (cd "$out" && "$ptxas" -O3 "-arch=sm_$target" forebay.ptx -o "forebay.sm_$target.cubin")
done

if [ "${1:-}" = --check ]; then
    for target in $targets; do
        cmp "forebay.sm_$target.cubin" "$out/forebay.sm_$target.cubin" || {
            echo "cubins.sh: forebay.sm_$target.cubin is stale; hint: run cubins.sh" >&2
            exit 1
        }
    done
    echo "the cubins are what forebay.ptx gives"
else
    rm -f forebay.sm_*.cubin
    cp "$out"/*.cubin .
    chmod 644 forebay.sm_*.cubin
    sha256sum forebay.ptx forebay.sm_*.cubin >cubins.sha256
    echo "wrote $(ls forebay.sm_*.cubin | wc -l) cubins"
fi
