"""Asks a Prometheus server each query of a Grafana board, until those that a reading bench feeds have values.

    board.py BOARD URL
"""

import json
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

# What a bench without GPU that reads never has.
IDLE = {"Bytes of each GPU", "Registered memory of each GPU", "Calls that failed", "Why no better engine", "Mean round trip"}


def ask(url, query):
    for name, value in (("$__rate_interval", "10s"), ("$instance", ".*"), ("$pid", ".*")):
        query = query.replace(name, value)
    address = f"{url}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    with urllib.request.urlopen(address, timeout=5) as answer:
        return json.load(answer)["data"]["result"]


def main():
    with open(sys.argv[1]) as file:
        panels = json.load(file)["panels"]
    queries = [(panel, target["expr"]) for panel in panels for target in panel["targets"]]
    end = time.monotonic() + 60
    waiting = [(panel, query) for panel, query in queries if panel["title"] not in IDLE]
    while waiting and time.monotonic() < end:
        time.sleep(1)
        try:
            waiting = [(panel, query) for panel, query in waiting if not ask(sys.argv[2], query)]
        except OSError as error:
            if isinstance(error, urllib.error.HTTPError):
                sys.exit(f"refused: {error.read().decode()}")
    if waiting:
        sys.exit("without values after 60 s: " + "; ".join(query for _, query in waiting))
    # The others are asked, too: a query that is no PromQL is an error.
    for _, query in queries:
        ask(sys.argv[2], query)
    rate = sum(float(one["value"][1]) for one in ask(sys.argv[2], "rate(forebay_io_bytes_total[10s])"))
    print(f"prometheus: {len(queries)} queries of the board passed, {rate / 1e9:.2f} GB/s seen")


main()
