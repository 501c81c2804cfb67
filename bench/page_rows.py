"""The rows of docs/benchmarks.md: what they compare, and where their figures are recorded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Row:
    """One comparison. `source` names the reader of bench/page.py; row, case and figure find the record."""

    work: str
    unit: str
    source: str
    row: str
    case: str
    figure: str
    ours: str = "forebay"
    peer: str = ""
    peer_name: str = ""
    ceiling: str = ""
    ceiling_name: str = ""
    short: str = ""
    scale: float = 1.0
    is_drawn: bool = True


@dataclass
class Table:
    name: str
    title: str
    chart: str
    part: str
    words: str
    rows: list[Row]
    in_ratios: bool = False


def touch(work: str, unit: str, row: str, case: str, figure: str, peer: str, name: str, **more: object) -> Row:
    return Row(work, unit, "first_touch", row, case, figure, peer=peer, peer_name=name, **more)  # type: ignore[arg-type]


LARGE = "11.2 GB of safetensors"
NVIDIA = "NVIDIA libcufile, compat"


def loads() -> list[Row]:
    rows = []
    for state, words in (("cat", "in the page cache"), ("tmpfs", "on tmpfs")):
        for n in (1, 2, 3):
            work, short = f"{LARGE} {words}, load {n}", f"{words}, load {n}"
            peer = ("instanttensor-mmap", "InstantTensor, MMAP")
            rows.append(touch(work, "GB/s", "loads", state, f"load {n}", *peer, short=short))
    rows.append(touch(f"{LARGE} in the page cache, load 1", "GB/s", "loads", "cat", "load 1", "safetensors", "safetensors",
                      short="the same, load 1"))  # fmt: skip
    for n in (1, 2):
        work = f"5 000 small tensors, load {n}"
        rows.append(touch(work, "GB/s", "tensors", "5 000 small tensors", f"load {n}", "safetensors", "safetensors"))
    return rows


def cufile() -> list[Row]:
    rows = []
    for case, words in (("16M x 1", "16 MiB, 1 thread"), ("1M x 16", "1 MiB, 16 threads")):
        for figure in ("first", "later", "after many"):
            work = f"cuFileRead {words}: {figure} pass{'es' if figure != 'first' else ''}"
            short = f"{words}: {figure}"
            rows.append(touch(work, "GB/s", "cufile", f"cuFileRead {case}", figure, "nvidia", NVIDIA, short=short))
    for threads in (1, 16):
        for n in (1, 3):
            work = f"KvikIO 4 MiB tasks, {threads} thread{'s' if threads > 1 else ''}: pass {n}"
            case, short = f"4M tasks, {threads} threads", f"KvikIO 4 MiB × {threads}: pass {n}"
            rows.append(touch(work, "GB/s", "kvikio", case, f"pass {n}", "posix", "KvikIO, POSIX", short=short))
    return rows


def small() -> list[Row]:
    rows = []
    for threads in (1, 16, 64):
        for figure in ("first", "later"):
            work = f"cuFileRead 4 KiB at random, {threads} thread{'s' if threads > 1 else ''}: {figure}"
            case, short = f"4K x {threads}, cuFileRead", f"4 KiB × {threads}: {figure}"
            rows.append(touch(work, "K IOPS", "small", case, figure, "nvidia", NVIDIA, short=short))
    work = "the same, 16 threads, buffers registered: later"
    rows.append(touch(work, "K IOPS", "small", "4K x 16, cuFileRead, buffers registered", "later", "nvidia", NVIDIA,
                      short="4 KiB × 16, buffers registered: later"))  # fmt: skip
    for offsets in ("device", "host"):
        work = f"forebay.map, gather of 1 M pieces of 4 KiB, offsets: {offsets}"
        rows.append(Row(work, "K IOPS", "gather", "", "", "", f"forebay {offsets}", "numpy", "numpy.memmap and a copy",
                        scale=1e-3, is_drawn=False))  # fmt: skip
    return rows


def training() -> list[Row]:
    rows = []
    for case, words, unit, figure, scale in (
        ("tokens", "4 KiB windows at random, batches of 4 096", "K records/s", "records_per_second", 1e-3),
        ("images", "128 KiB images at random, batches of 256", "GB/s", "gb_per_second", 1.0),
    ):
        rows.append(Row(words, unit, "training", "", case, figure, peer="torch", peer_name="torch DataLoader, 8 workers",
                        scale=scale, short=words.split(",")[0]))  # fmt: skip
    for step in ("0.323", "0.162"):
        work = f"146.6 MB volumes beside steps of {step} s: time in which the step runs"
        rows.append(Row(work, "% of time", "training", "", f"volumes, {step} s", "utilisation", peer="kvikio",
                        peer_name="KvikIO", scale=100, short=f"volumes, {step} s"))  # fmt: skip
    return rows


def cold() -> list[Row]:
    same = {"ceiling": "fio", "ceiling_name": "fio"}
    rows = [
        touch("one call of 1 GiB", "GB/s", "cold-large", "one call of 1 GiB", "first", "fio", "fio io_uring, 1 MiB × 16", **same),
        touch("1 MiB, 4 threads", "GB/s", "cold-large", "1M x 4", "first", "fio", "fio io_uring, 4 jobs", **same),
    ]
    small = [
        touch(f"4 KiB at random, {n} threads", "K IOPS", "cold", f"4K x {n}", "first", "fio", "fio psync", **same)
        for n in (16, 64)
    ]
    case = "4K batches, depth 64 as 2 of 32"
    small.append(touch("4 KiB batches, depth 64 as 2 of 32", "K IOPS", "cold", case, "first", "fio", "fio io_uring", **same))
    return rows + small


def writes() -> list[Row]:
    def save(folder: str, words: str, ceiling: str) -> Row:
        return Row(f"save_file of 5.6 GB to {words}", "GB/s", "save", "save", folder, "", peer="safetensors",
                   peer_name="safetensors", ceiling="ceiling", ceiling_name=ceiling)  # fmt: skip

    return [
        touch("O_DIRECT over a file of the disk, 1 MiB, 4 threads", "GB/s", "writes", "disk, 1M x 4", "first", "fio",
              "fio io_uring, 4 jobs", ceiling="fio", ceiling_name="fio"),
        save("disk", "the disk, flushed", "fio, fsync"),
        save("tmpfs", "a new tmpfs file", "fallocate of its pages"),
    ]  # fmt: skip


def one_core() -> list[Row]:
    return [
        touch(f"O_DIRECT reads of {size}, {n} threads", unit, "pinned-cpu", f"{size[0:2].strip()}K x {n}, read", "first",
              "forebay type 2", "type 2: pread and copy", ours="forebay type 0")
        for size, n, unit in (("4 KiB", 4, "K IOPS"), ("4 KiB", 8, "K IOPS"), ("64 KiB", 4, "GB/s"), ("64 KiB", 8, "GB/s"))
    ]  # fmt: skip


def nfs() -> list[Row]:
    rows = []
    for connections in (1, 8):
        for ours, words in (("forebay", "host memory"), ("forebay, GPU", "the GPU")):
            work = f"{connections} connection{'s' if connections > 1 else ''} into {words}"
            rows.append(Row(work, "GB/s", "nfs", "", str(connections), "", ours, "libnfs", "libnfs, host memory", "bare",
                            "bare receive"))  # fmt: skip
    return rows


INTRO = """# Benchmarks

What forebay moves on a GPU machine beside the best other program for the same work. Every row was measured for the release, on one
commit, on virtual machines with one GPU (PCIe Gen5) and ext4 on a virtio disk that its host caches, shares and limits.

- **forebay**, **best peer**: the median over as many fresh processes as stand behind the card; they take turns on the same file.
  A gather is one process with that many passes.
- **ratio**: forebay to the peer. **Bold** is a miss: the peer is faster. One run says little about a few per cent.
- **CPU**: user and system seconds for 10⁹ bytes; where the unit counts operations or records, µs for each.
- **compat**: these machines have no nvidia-fs. NVIDIA's library ran in its compatibility mode (POSIX reads and copies): no figure here
  is one of GPUDirect.
- The H100 rows are of two such machines: large cold reads, volumes and NFS of the second. Ceilings of rows in the page cache were
  not measured.
- Older runs, what was tried and what did not pay are in [benchmarks/](benchmarks/README.md), by date.
""".splitlines()

OUTRO = """## Repeat it
```
cargo build --release -p forebay-cli && cargo build --release -p forebay-cufile --lib --example cufile_bench
make python && mkdir -p BUILD/python && unzip -q dist/*.whl -d BUILD/python
cp target/release/{forebay,libcufile.so,examples/cufile_bench} BUILD
bench/build-fio.sh && bench/fetch-peers.sh PEERS     # install the wheels beside torch, cupy and nvidia-cufile
bench/nfs_tcp.py --prepare
COMMIT=$(git rev-parse --short HEAD) bench/release.sh BUILD OUT loads programs disk training nfs
bench/page.py OUT…                                   # this page, of the machines that were measured
```
Without a GPU: `make bench-local` (host memory), `bench/instructions.py` (instructions for each operation, by callgrind).
Two builds beside each other: `bench/old_new.py OLD NEW`.""".splitlines()

TABLES = [
    Table("chart-loads", "Loads of models", "GB/s", "loads", "`forebay.load_file` to the GPU; a process loads three times.", loads()),
    Table("chart-cufile", "cuFile programs", "GB/s", "programs",
          "The same program on both libraries; a file of 4 GiB in the page cache.", cufile()),
    Table("chart-small", "Small I/O", "K IOPS", "programs loads", "A file in the page cache.", small()),
    Table("chart-training", "Training data", "times the peer's rate", "training",
          "A step on the GPU reads every batch. Files are in the page cache.", training(), in_ratios=True),
    Table("chart-cold", "Cold reads", "times fio's rate", "disk",
          "O_DIRECT from the disk into GPU memory; fio reads into host memory.", cold(), in_ratios=True),
    Table("chart-writes", "Writes", "GB/s", "disk", "From GPU memory.", writes()),
    Table("chart-core", "CPU on one core", "times the rate of type 2", "disk",
          "`taskset -c 0`, O_DIRECT. Type 2 is `forebay bench -x 2`: a pread into host memory, then a copy.", one_core(),
          in_ratios=True),
    Table("chart-nfs", "NFS over TCP", "GB/s", "nfs",
          "nfs-ganesha on loopback, version 3, on CPUs of its own; 8 calls of 1 MiB on each connection.", nfs()),
]  # fmt: skip
