"""Runs the cases of s3-tests.txt on a server of its own, and compares the results with the list.

    s3_tests.py FOREBAY SUITE [PYTEST …]      called by tests/gateway/s3-tests

A line of the list is the name of a case, or `NAME: REASON` of one that is expected to fail.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).parent
# Cases that take more than a second: parts of 5 MiB, thousands of keys, several writers.
SLOW = re.compile("multipart|atomic|_1000|large|big|maxkeys|checksum|cksum|key_limit|tags")
# They count all buckets of their user: nothing runs beside them.
ALONE = re.compile("^test_list_buckets")
USERS = ("main", "alt", "tenant")
Results = dict[str, bool]


def cases() -> dict[str, str]:
    """The reason why a case is expected to fail, or nothing, by name."""
    lines = [line for line in (HERE / "s3-tests.txt").read_text().splitlines() if line and not line.startswith("#")]
    pairs = [line.partition(": ") for line in lines]
    return {name: reason for name, _, reason in pairs}


def settings(port: int) -> str:
    """What the suite reads: three users. Sections of what no case here asks for have to be there."""
    text = f"[DEFAULT]\nhost = 127.0.0.1\nport = {port}\nis_secure = False\nssl_verify = False\n"
    text += "[fixtures]\nbucket prefix = s3t-{random}-\niam name prefix = s3t-\niam path prefix = /s3t/\n"
    for section, user in [
        ("s3 main", "main"),
        ("s3 alt", "alt"),
        ("s3 tenant", "tenant"),
        *((name, "main") for name in UNUSED),
    ]:
        text += (
            f"[{section}]\ndisplay_name = {user}\nuser_id = {user}\nemail = {user}@example.com\napi_name = us-east-1\n"
        )
        text += f"access_key = {user}\nsecret_key = secret-of-{user}\ntenant = {user}\n"
    return text


UNUSED = ("iam", "iam root", "iam alt root")


def accounts() -> str:
    """Users of one directory, whose buckets nobody else may enter: as root, with user numbers of their own."""
    text = ""
    for number, user in enumerate(USERS, 10_001):
        text += f'[[account]]\naccess_key = "{user}"\nsecret_key = "secret-of-{user}"\n'
        if os.getuid() == 0:
            text += f"uid = {number}\ngid = {number}\n"
    return text


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def forebay(program: str, folder: Path, port: int) -> list[str]:
    (folder / "data").mkdir()
    (folder / "data").chmod(0o1777)
    folder.chmod(0o755)
    (folder / "accounts.toml").write_text(accounts())
    (folder / "accounts.toml").chmod(0o600)
    return [
        program,
        "serve",
        "s3",
        str(folder / "data"),
        "--listen",
        f"127.0.0.1:{port}",
        "--accounts",
        str(folder / "accounts.toml"),
    ]


def versitygw(program: str, folder: Path, port: int) -> list[str]:
    (folder / "data").mkdir()
    (folder / "iam").mkdir()
    words = [
        program,
        "--port",
        f"127.0.0.1:{port}",
        "--quiet",
        "--keep-alive",
        "--access",
        "main",
        "--secret",
        "secret-of-main",
    ]
    return [*words, "--iam-dir", str(folder / "iam"), "posix", "--sidecar", str(folder / "iam"), str(folder / "data")]


def run(server: list[str], folder: Path, port: int, suite: Path, names: list[str], words: list[str]) -> Results:
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(server, stdout=log, stderr=log, umask=0o077)
        try:
            wait_for(port, process)
            return tested(folder, port, suite, names, words)
        except BaseException:
            sys.stderr.write((folder / "log").read_text(errors="replace")[-2000:])
            raise
        finally:
            process.terminate()
            process.wait()


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(100):
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise SystemExit("error: the server does not start")


def tested(folder: Path, port: int, suite: Path, names: list[str], words: list[str]) -> Results:
    (folder / "s3tests.conf").write_text(settings(port))
    beside = [name for name in names if not ALONE.search(name)]
    passed = suite_run(folder, suite, beside, ["-n", "4", *words])
    if alone := [name for name in names if ALONE.search(name)]:
        passed |= suite_run(folder, suite, alone, words)
    return passed


def suite_run(folder: Path, suite: Path, names: list[str], words: list[str]) -> Results:
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    paths = [f"s3tests/functional/test_s3.py::{name}" for name in names]
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", f"--junitxml={report}", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *words, *paths],
        cwd=suite,
        env={**os.environ, "S3TEST_CONF": str(folder / "s3tests.conf"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=1500,
    )
    keep_logs(folder, report, done.stdout + done.stderr)
    if not report.exists():
        raise SystemExit(f"error: the suite does not run\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return results(ElementTree.parse(report).iter("testcase"))


def keep_logs(folder: Path, report: Path, output: str) -> None:
    if not (out := os.environ.get("OUT_DIR")):
        return
    Path(out).mkdir(parents=True, exist_ok=True)
    with (Path(out) / "s3-tests.log").open("a") as log:
        log.write(output)
    shutil.copy(folder / "log", Path(out) / "server.log")
    if report.exists():
        shutil.copy(report, Path(out) / f"report-{len(list(Path(out).glob('report-*')))}.xml")


def results(found: Iterable[ElementTree.Element]) -> Results:
    """Whether each case passed. One that was skipped did not; an error at its end counts, too."""
    passed: Results = {}
    for case in found:
        bad = any(case.find(tag) is not None for tag in ("failure", "error", "skipped"))
        name = case.get("name", "")
        passed[name] = passed.get(name, True) and not bad
    return passed


def main() -> int:
    program, suite, words = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    listed = cases()
    names = [name for name in listed if not os.environ.get("ONLY") or name in os.environ["ONLY"].split()]
    if os.environ.get("QUICK"):
        names = [name for name in names if not SLOW.search(name) and not listed[name]]
    with tempfile.TemporaryDirectory() as name:
        port = free_port()
        passed = run(forebay(program, Path(name), port), Path(name), port, suite, names, words)
    wrong = [case for case in names if passed.get(case, False) == bool(listed[case])]
    for case in wrong:
        print(f"{case}: " + (f"passes; the list says: {listed[case]}" if listed[case] else "failed"))
    if os.environ.get("BESIDE"):
        with tempfile.TemporaryDirectory() as name:
            port = free_port()
            beside = run(versitygw(os.environ["BESIDE"], Path(name), port), Path(name), port, suite, names, words)
        print(f"{sum(beside.values())} of {len(names)} pass on {os.environ['BESIDE']}")
    expected = sum(bool(listed[case]) for case in names)
    print(f"{sum(passed.values())} passed, {len(wrong)} failed, {expected} were to fail by the list")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
