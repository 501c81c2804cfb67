# shellcheck shell=bash
# `forebay doctor` in a guest: a fault is planted, found with its evidence, its fix is typed as it is printed, and is gone.

# The fixes begin with sudo, which the image has not.
printf '#!/bin/sh\nexec "$@"\n' >/usr/local/bin/sudo
chmod +x /usr/local/bin/sudo

# doctor ARGUMENT …: its report as JSON in /tmp/doctor.json; the exit code must be that of the worst finding.
doctor() {
    local code=0
    gpu forebay doctor --json "$@" >/tmp/doctor.json || code=$?
    python3 - "$code" <<'PY' || fail "exit code $code"
import json, sys
report = json.load(open("/tmp/doctor.json"))
sys.exit({"blocks": 2, "slower": 1}.get(report["worst"], 0) != int(sys.argv[1]))
PY
}

# ask ID FIELD: the fix, severity, text or evidence of the finding, or nothing.
ask() {
    python3 - "$@" <<'PY'
import json, sys
for finding in json.load(open("/tmp/doctor.json"))["findings"]:
    if finding["id"] == sys.argv[1] and finding["severity"] != "ok":
        value = finding[sys.argv[2]]
        print("\n".join(value) if isinstance(value, list) else value)
        break
PY
}

# ids: all findings that are not "ok".
ids() {
    python3 -c 'import json; print(" ".join(sorted({f["id"] for f in json.load(open("/tmp/doctor.json"))["findings"] if f["severity"] != "ok"})))'
}

# healthy ARGUMENT …: nothing is found, but that the guest's own server exports a drive.
healthy() {
    doctor --ignore export-not-tmpfs "$@"
    [ -z "$(ids)" ] || fail "found in a healthy guest: $(gpu forebay doctor "$@")"
    echo "  nothing found"
}

# found ID SEVERITY EVIDENCE: the last report has it.
found() {
    [ "$(ask "$1" severity)" = "$2" ] || fail "$1 is '$(ask "$1" severity)', not $2; found: $(ids): $(cat /tmp/doctor.json)"
    ask "$1" evidence | grep -qF -- "$3" || fail "$1: no '$3' in: $(ask "$1" evidence)"
    echo "  found: $1 ($2): $(ask "$1" text)"
}

# type_fix ID [SED]: types the fix of the last report as it is printed, up to what only explains; SED chooses one of several, and
# fills in names.
type_fix() {
    local fix
    fix=$(ask "$1" fix | sed -e "${2:-}" -e 's/; .*//' -e 's/, then .*//')
    echo "  typed: $fix"
    bash -c "$fix" >/tmp/fix.txt 2>&1 || fail "$fix: $(cat /tmp/fix.txt)"
}

# gone ID ARGUMENT …: it is not found any more.
gone() {
    local id=$1
    shift
    doctor "$@"
    [ -z "$(ask "$id" text)" ] || fail "still there: $id: $(ask "$id" text)"
    echo "  gone: $id"
}

# The mount as it should be, also after a reboot.
mount_for_good() {
    nfs_mount rdma 4.0 tmp
    echo "$address:/tmp /mnt nfs vers=4.0,proto=rdma,port=20049,_netdev 0 0" >/etc/fstab
    mkdir -p /etc/modules-load.d
    printf 'rpcrdma\nrdma_rxe\n' >/etc/modules-load.d/rdma.conf
    for file in /sys/class/bdi/0:*/read_ahead_kb; do echo 16384 >"$file"; done
}
