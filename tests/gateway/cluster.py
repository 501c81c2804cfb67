"""Two gateways behind HAProxy, on two mounts of one file system: what each of them and the death of one costs a client.

cluster.py FILESYSTEM [--quick]      called by tests/gateway/cluster, in its namespaces
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from cluster_load import CLIENTS, Load
from cluster_shared import both_at_once, listings, multipart, replaced, rounds
from cluster_world import Balancer, Gateway, Table, bucket

WORK = Path(os.environ["CLUSTER_WORK"])
REPOSITORY = Path(__file__).resolve().parent.parent.parent


class Cluster:
    """Gateways `a` and `b`, and the balancer before them."""

    def __init__(self) -> None:
        program = os.environ["FOREBAY"]
        # The example that operators get, as it is.
        self.balancer = Balancer(REPOSITORY / "packaging/haproxy-s3.cfg", WORK)
        self.a = Gateway(program, "gateway-a", WORK / "a/served", WORK)
        self.b = Gateway(program, "gateway-b", WORK / "b/served", WORK)
        bucket(self.a.url)
        self.balancer.wait(2)

    def end(self) -> None:
        for one in (self.a, self.b, self.balancer):
            one.end()


def killed(cluster: Cluster, table: Table, times: int) -> None:
    """SIGKILL under load, of each gateway in turn: at most the requests under way fail, and none with an SDK's retries."""
    for attempts, name in (
        (1, "requests, a gateway killed, no retries"),
        (5, "requests, a gateway killed, the SDK's retries"),
    ):
        load = Load(cluster.balancer.url, attempts)
        for number in range(times):
            victim = (cluster.a, cluster.b)[number % 2]
            time.sleep(1.5)
            load.mark_death()
            victim.kill()
            time.sleep(1.5)
            victim.start()
            cluster.balancer.wait(2)
        load.finish()
        # Each of the two clients has a connection for each thread: one that the death closes fails one request.
        allowed = times * 2 * CLIENTS if attempts == 1 else 0
        table.row(f"{name} ({times} times)", load.done, len(load.failures), allowed, load.explain())
        late = load.late()
        table.row("  of them begun after it", load.done, len(late), 0, late)
        table.row("  wrong bytes, lost or torn objects", load.compared, len(load.wrong), 0, load.wrong)
        checked, wrong = load.verify([cluster.a.url, cluster.b.url], [WORK / "a/served", WORK / "b/served"])
        table.row("  objects at the end, by both gateways and mounts", checked, len(wrong), 0, wrong)


def left(cluster: Cluster, table: Table, times: int) -> None:
    """SIGTERM under load: the balancer sends new connections elsewhere, and no request is broken off."""
    load = Load(cluster.balancer.url, 1)
    for number in range(times):
        victim = (cluster.a, cluster.b)[number % 2]
        time.sleep(1)
        victim.terminate()
        victim.start()
        cluster.balancer.wait(2)
    load.finish()
    table.row(
        f"requests, a gateway leaves on SIGTERM, no retries ({times} times)",
        load.done,
        len(load.failures),
        0,
        load.explain(),
    )
    table.row("  wrong bytes, lost or torn objects", load.compared, len(load.wrong), 0, load.wrong)


def died_amid_upload(cluster: Cluster, table: Table) -> None:
    """An upload that was begun at a gateway that is killed goes on at the other."""
    wrong = multipart([cluster.a.url, cluster.b.url], between=cluster.a.kill)
    cluster.a.start()
    cluster.balancer.wait(2)
    table.row("upload whose first gateway is killed", 1, len(wrong), 0, wrong)


def ask(cluster: Cluster, table: Table, quick: bool) -> None:
    """All of it, into the table."""
    turns = int(os.environ.get("ROUNDS") or (50 if quick else 1000))
    times = 2 if quick else 10
    urls = [cluster.a.url, cluster.b.url]
    table.row(*rounds(urls, turns))
    table.row(*both_at_once(urls, 10 if quick else 100))
    for wrong in [multipart(urls) for _ in range(2 if quick else 20)]:
        table.add("uploads spread over both", 1, len(wrong), 0, wrong)
    for row in listings(urls, 50 if quick else 300):
        table.row(*row)
    for row in replaced(urls, 3 if quick else 20):
        table.row(*row)
    died_amid_upload(cluster, table)
    killed(cluster, table, times)
    left(cluster, table, min(times, 4))
    cluster.end()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("filesystem")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    table = Table()
    try:
        ask(Cluster(), table, options.quick)
    except Exception:
        show_logs()
        raise
    finally:
        print(table.text(options.filesystem), flush=True)
    if not table.holds():
        show_logs()
        sys.exit(1)
    print(f"{options.filesystem}: two gateways, one killed, compared")


def show_logs() -> None:
    for log in sorted(WORK.glob("*.log")):
        print(f"--- {log.name}", file=sys.stderr)
        sys.stderr.writelines(log.read_text(errors="replace").splitlines(keepends=True)[-30:])


if __name__ == "__main__":
    main()
