#!/usr/bin/env python3
"""Turns the records of bench/measure.py into tables, with nothing but Python's standard library.

    bench/report.py RESULTS.jsonl [--markdown FILE]     medians of each section, case and subject
    bench/report.py --one RUN.json                      one report of `forebay bench --json`, in a few lines

A ratio is the first subject of a case against each other one: medians against medians.
"""

import argparse
import json
import statistics
import sys


def first(data, *paths):
    """The first of these dotted paths that leads to a number or a word."""
    for path in paths:
        value = data
        for step in path.split("."):
            if isinstance(value, list):
                value = value[int(step)] if step.lstrip("-").isdigit() and value else None
            elif isinstance(value, dict):
                value = value.get(step)
            else:
                value = None
            if value is None:
                break
        if value is not None and not isinstance(value, (dict, list)):
            return value
    return None


def from_fio(result):
    """Sums over jobs; CPU seconds from each job's own share of its run time."""
    moved = seconds = operations = cpu_user = cpu_system = 0.0
    p50, p99 = [], []
    for job in result["jobs"]:
        if job.get("error"):
            return {"error": f"fio error {job['error']}"}
        for way in ("read", "write"):
            side = job[way]
            if not side["io_bytes"]:
                continue
            moved += side["io_bytes"]
            operations += side["total_ios"]
            seconds = max(seconds, side["runtime"] / 1e3)
            percentiles = side.get("clat_ns", {}).get("percentile", {})
            if percentiles:
                p50.append(percentiles["50.000000"] / 1e3)
                p99.append(percentiles["99.000000"] / 1e3)
        run = job.get("job_runtime", 0) / 1e3
        cpu_user += job["usr_cpu"] / 100 * run
        cpu_system += job["sys_cpu"] / 100 * run
    if not moved or not seconds:
        return {"error": "fio moved nothing"}
    return {
        "gb_per_s": moved / seconds / 1e9,
        "iops": operations / seconds,
        "user_s_per_gb": cpu_user / (moved / 1e9),
        "system_s_per_gb": cpu_system / (moved / 1e9),
        "p50_us": statistics.median(p50) if p50 else None,
        "p99_us": statistics.median(p99) if p99 else None,
    }


def from_kvikio(result):
    case = result[-1]
    return {key: case.get(key) for key in ("gb_per_s", "iops", "user_s_per_gb", "system_s_per_gb")}


def from_forebay(result):
    """The report of `forebay bench --json`; docs/reference/bench-json.md is its schema."""
    runs = result.get("runs") or result.get("passes") or [result]
    samples = [run for run in runs if isinstance(run, dict)]
    figures = {}
    for key, paths in FOREBAY_PATHS.items():
        values = [v for v in (first(run, *paths) for run in samples) if isinstance(v, (int, float))]
        if values:
            figures[key] = statistics.median(values)
    engines = first(samples[-1], "engine", "engines.0.engine", "engines.0.name")
    if engines:
        figures["engine"] = engines
    return figures


FOREBAY_PATHS = {
    "gb_per_s": ("gb_per_s",),
    "iops": ("iops",),
    "user_s_per_gb": ("cpu.user_s_per_gb",),
    "system_s_per_gb": ("cpu.system_s_per_gb",),
    "ceiling_gb_per_s": ("ceiling.gb_per_s",),
    "p50_us": ("latency_us.p50",),
    "p99_us": ("latency_us.p99",),
}
READERS = {"fio": from_fio, "kvikio": from_kvikio, "forebay": from_forebay}


def load(path):
    """{(section, case): {subject: [figures]}} in the order of the file, and the failures."""
    cases, failures = {}, []
    with open(path, encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            name = f"{record['section']}, {record['case']}, {record['subject']}"
            if record["status"] != 0:
                failures.append(f"{name}: {record['status']}")
                continue
            try:
                figures = READERS[record["kind"]](record["result"])
            except (KeyError, IndexError, TypeError, ValueError) as error:
                figures = {"error": f"cannot read the report: {type(error).__name__} {error}"}
            if "error" in figures or figures.get("gb_per_s") is None:
                failures.append(f"{name}: {figures.get('error', 'no throughput in the report')}")
                continue
            case = cases.setdefault((record["section"], record["case"]), {})
            case.setdefault(record["subject"], []).append(figures)
    return cases, failures


def median(samples, key):
    values = [s[key] for s in samples if isinstance(s.get(key), (int, float))]
    return statistics.median(values) if values else None


def number(value, digits=3):
    if value is None:
        return "–"
    if value >= 1e6:
        return f"{value / 1e6:.2f} M"
    if value >= 1e4:
        return f"{value / 1e3:.1f} K"
    if value >= 1e3:
        return f"{value:.0f}"
    return f"{value:.{digits}g}"


HEAD = (
    "| section | case | subject | runs | GB/s | spread | IOPS | user s/GB | sys s/GB | p50 µs | p99 µs | % of ceiling | forebay ÷ it |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def table(cases):
    lines = [HEAD]
    for (section, case), subjects in cases.items():
        leader = None
        for subject, samples in subjects.items():
            speed = median(samples, "gb_per_s")
            speeds = [s["gb_per_s"] for s in samples]
            spread = (max(speeds) - min(speeds)) / speed * 100 if speed else 0
            ceiling = median(samples, "ceiling_gb_per_s")
            ratio = "" if leader is None else f"{leader / speed:.3f}"
            leader = speed if leader is None else leader
            cells = [
                section,
                case,
                subject,
                str(len(samples)),
                number(speed),
                f"{spread:.0f} %",
                number(median(samples, "iops")),
                number(median(samples, "user_s_per_gb"), 2),
                number(median(samples, "system_s_per_gb"), 2),
                number(median(samples, "p50_us")),
                number(median(samples, "p99_us")),
                f"{speed / ceiling * 100:.0f} %" if ceiling else "–",
                ratio,
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?")
    parser.add_argument("--markdown")
    parser.add_argument("--one")
    options = parser.parse_args()
    if options.one:
        with open(options.one, encoding="utf-8") as file:
            figures = from_forebay(json.load(file))
        if not figures.get("iops"):
            sys.exit(f"error: {options.one}: no operations in the report")
        print(f"{number(figures['iops'])} operations a second, {1e6 / figures['iops']:.2f} µs each, "
              f"engine {figures.get('engine', '–')}")
        return
    if not options.results:
        parser.error("name a results file")
    cases, failures = load(options.results)
    text = table(cases)
    if failures:
        text += "\n\nFailed runs:\n" + "\n".join(f"- {failure}" for failure in failures)
    print(text)
    if options.markdown:
        with open(options.markdown, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    sys.exit(1 if not cases else 0)


if __name__ == "__main__":
    main()
