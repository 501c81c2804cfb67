"""What a reader by URL sees of this host's kernel, and the other way round: the rules of docs/concepts/nfs.md.

coherence.py tcp|rdma VERSION ADDRESS: the export is mounted at /mnt and, as by another host, seen by way of /other.
"""

import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

SIZE = 256 << 10
STALE = "Busy: cannot read: the file was removed or replaced on the server"


class Url:
    """A file by URL, opened once, that runs commands."""

    def __init__(self, name: str) -> None:
        path = f"/export/tmp/{name}" if VERSION == "3" else f"/tmp/{name}"
        url = f"nfs://{ADDRESS}{path}?version={VERSION}"
        self.process = subprocess.Popen(
            ["nfs_loop", PROTO, "talk", url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        first = self.line()
        if first != "ready":
            wrong(f"cannot open {url}: {first}")

    def line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def tell(self, line: str) -> str:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.line()

    def reads(self, rule: str, wanted: str, offset: int = 0, length: int = SIZE) -> None:
        check(rule, self.tell(f"read {offset} {length}"), wanted)

    def writes(self, letter: str, offset: int = 0, length: int = SIZE) -> None:
        check("it writes", self.tell(f"write {offset} {length} {letter}"), f"wrote {length}")

    def waited(self) -> int:
        return int(self.tell("waited").split()[1])


def wrong(text: str) -> None:
    print(f"FAILED: {PROTO} {VERSION}: {text}", flush=True)
    sys.exit(1)


def check(rule: str, seen: str, wanted: str) -> None:
    print(f"    {rule}: {seen}", flush=True)
    if seen != wanted:
        wrong(f"{rule}: {seen}, not {wanted}")


def runs(data: bytes) -> str:
    """As nfs_loop tells them."""
    out, at = [], 0
    while at < len(data):
        end = at + len(data[at:]) - len(data[at:].lstrip(data[at : at + 1]))
        out.append(f"{chr(data[at])}*{end - at}")
        at = end
    return " ".join(out) or "nothing"


def all_of(letter: str, length: int = SIZE) -> str:
    return f"{letter}*{length}"


def made(name: str, letter: str = "a") -> str:
    """A file on the server, made there."""
    with open(f"/export/tmp/{name}", "wb") as out:
        out.write(letter.encode() * SIZE)
    return name


def reopened(folder: str, name: str) -> str:
    with open(f"{folder}/{name}", "rb") as file:
        return runs(file.read())


def reopens(rule: str, folder: str, name: str, wanted: str) -> None:
    """What a program sees that opens the file there; if that is wrong, whose it is: the server's, or the mount's page cache."""
    seen = reopened(folder, name)
    for place in (folder, "/export/tmp") if seen != wanted else ():
        changed = os.stat(f"{place}/{name}").st_ctime_ns
        print(f"    {rule}: now in {place}: {reopened(place, name)}, changed {changed}", flush=True)
    check(rule, seen, wanted)


def delegations(name: str, kind: str) -> int:
    """How many of this kind the server has given out for a file."""
    found = 0
    clients = "/proc/fs/nfsd/clients"
    for client in os.listdir(clients):
        with open(f"{clients}/{client}/states") as states:
            wanted = ("type: deleg", f"access: {kind}", f'/{name}"')
            found += sum(all(word in line for word in wanted) for line in states)
    return found


def buffered_writer() -> None:
    print("  a buffered writer on this host's mount", flush=True)
    name = made("buffered")
    url = Url(name)
    url.reads("before", all_of("a"))
    fd = os.open(f"/mnt/{name}", os.O_RDWR)
    os.pwrite(fd, b"b" * SIZE, 0)
    print(f"    {delegations(name, 'w')} write delegations were there", flush=True)
    url.reads("written: old bytes", all_of("a"))
    os.pwrite(fd, b"c" * SIZE, 0)
    os.fsync(fd)
    url.reads("fsync: new bytes", all_of("c"))
    os.pwrite(fd, b"d" * SIZE, 0)
    os.close(fd)
    url.reads("close: new bytes", all_of("d"))


def mapped_writer() -> None:
    print("  a writer by mmap on this host's mount", flush=True)
    name = made("mapped")
    url = Url(name)
    fd = os.open(f"/mnt/{name}", os.O_RDWR)
    memory = mmap.mmap(fd, SIZE)
    memory[:] = b"b" * SIZE
    print(f"    {delegations(name, 'w')} write delegations were there", flush=True)
    url.reads("written: old bytes", all_of("a"))
    memory[:] = b"c" * SIZE
    memory.flush()
    url.reads("msync: new bytes", all_of("c"))
    memory[:] = b"d" * SIZE
    os.close(fd)
    memory.close()
    os.sync()
    url.reads("unmapped, sync: new bytes", all_of("d"))


def direct_writer() -> None:
    print("  O_DIRECT on this host's mount", flush=True)
    name = made("direct")
    url = Url(name)
    fd = os.open(f"/mnt/{name}", os.O_RDWR | os.O_DIRECT)
    block = mmap.mmap(-1, SIZE)
    block[:] = b"b" * SIZE
    os.pwrite(fd, block, 0)
    url.reads("written: new bytes", all_of("b"))
    url.writes("c")
    os.preadv(fd, [block], 0)
    check("written by URL: O_DIRECT has new bytes", runs(block[:]), all_of("c"))
    os.close(fd)


def other_client() -> None:
    print("  another client", flush=True)
    name = made("other")
    url = Url(name)
    fd = os.open(f"/other/{name}", os.O_RDWR)
    os.pwrite(fd, b"b" * SIZE, 0)
    os.fsync(fd)
    url.reads("fsync there: new bytes", all_of("b"))
    os.close(fd)
    # Clients of NFS 3 see two changes within one tick of the server's clock as one.
    time.sleep(0.05)
    url.writes("c", 4096, 8192)
    new = f"b*4096 c*8192 b*{SIZE - 12288}"
    check("written by URL: on the server", reopened("/export/tmp", name), new)
    # Linux's client of NFS 3 may open a file that it has just closed without GETATTR or LOOKUP, and show what it has of it
    # (seen in 6 of 40 rounds, the server's own file being new). It asks for what it has forgotten.
    Path("/proc/sys/vm/drop_caches").write_text("2")
    reopens("written by URL, opened there", "/other", name, new)
    second = Url(name)
    second.writes("d")
    url.reads("written by URL elsewhere: seen", all_of("d"))


def cut_and_renamed() -> None:
    print("  truncated, renamed, replaced", flush=True)
    name = made("cut")
    url = Url(name)
    url.reads("before", all_of("a"))
    os.truncate(f"/mnt/{name}", 5001)
    url.reads("cut: a short read", all_of("a", 5001))
    check("its length", url.tell("size"), "size 5001")
    os.truncate(f"/mnt/{name}", 6001)
    url.reads("longer again: zeros", "a*5001 00*1000")
    os.rename(f"/mnt/{name}", "/mnt/renamed")
    url.reads("renamed: the same file", "a*5001 00*1000")
    made("new", "n")
    os.rename("/mnt/new", "/mnt/renamed")
    said = url.tell(f"read 0 {SIZE}").split(" (")[0]
    check("replaced: the old one is gone", said, STALE)
    Url("renamed").reads("opened again: the new one", all_of("n"))


def read_here() -> None:
    print("  written by URL, read on this host's mount", flush=True)
    name = made("here")
    url = Url(name)
    fd = os.open(f"/mnt/{name}", os.O_RDONLY)
    check("before", runs(os.pread(fd, SIZE, 0)), all_of("a"))
    has = delegations(name, "r")
    waited = url.waited()
    url.writes("b")
    print(f"    {has} read delegations were there; waited {url.waited() - waited} times", flush=True)
    if has != (VERSION != "3"):
        wrong("the server gave no delegation")
    if has and url.waited() == waited:
        wrong("a write did not wait for the delegation")
    print(f"    still open: {runs(os.pread(fd, SIZE, 0))}", flush=True)
    reopens("reopened: new bytes", "/mnt", name, all_of("b"))
    os.close(fd)

    writer = os.open(f"/mnt/{name}", os.O_RDWR)
    check("open for writing", runs(os.pread(writer, SIZE, 0)), all_of("b"))
    url.writes("c")
    print(f"    reopened while it is: {reopened('/mnt', name)}", flush=True)
    os.posix_fadvise(writer, 0, SIZE, os.POSIX_FADV_DONTNEED)
    check("dropped from the page cache: new bytes", runs(os.pread(writer, SIZE, 0)), all_of("c"))
    os.close(writer)


PROTO, VERSION, ADDRESS = sys.argv[1:4]
for step in (buffered_writer, mapped_writer, direct_writer, other_client, cut_and_renamed, read_here):
    step()
