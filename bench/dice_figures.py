"""The table and the plot of bench/time_to_dice.py, out of its lines."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

LABELS = {"gds": "gds (NVIDIA's libcufile; compat mode unless nvidia-fs is there)"}
COLOURS = {"persistent": "#888888", "gds": "#d08020", "forebay": "#2060c0"}
REACHED = 0.75
#: Of the plot: a panel's width and height, and where the first one begins.
WIDE, HIGH, LEFT, TOP = 360, 280, 55, 40


def reached(epochs: list[dict[str, float]]) -> float | None:
    """Seconds to Dice 0.75."""
    total = 0.0
    for epoch in epochs:
        total += epoch["seconds"]
        if epoch["dice"] >= REACHED:
            return total
    return None


def table(lines: list[dict[str, Any]]) -> list[str]:
    text = [
        "",
        "| regime | arm | s an epoch | of it waited | s to Dice 0.75 | last Dice (seeds) |",
        "|---|---|---|---|---|---|",
    ]
    notes = []
    for regime in dict.fromkeys(line["regime"] for line in lines):
        for arm in COLOURS:
            mine = [line for line in lines if (line["regime"], line["arm"]) == (regime, arm)]
            done = [line for line in mine if "epochs" in line]
            notes += [f"{regime}, {arm}, seed {line['seed']}: {line['skipped']}" for line in mine if "skipped" in line]
            if not done:
                continue
            # The first epoch makes the context and the kernels.
            later = [epoch for line in done for epoch in line["epochs"][1:] or line["epochs"]]
            seconds, waited = (statistics.median(epoch[key] for epoch in later) for key in ("seconds", "waited"))
            times = [reached(line["epochs"]) for line in done]
            known = [one for one in times if one is not None]
            to = f"{statistics.median(known):.1f}" if len(known) == len(times) else "not reached"
            dice = ", ".join(f"{line['epochs'][-1]['dice']:.4f}" for line in done)
            text.append(f"| {regime} | {LABELS.get(arm, arm)} | {seconds:.3f} | {waited:.3f} | {to} | {dice} |")
        for seed in dict.fromkeys(line["seed"] for line in lines):
            alike = [one for one in lines if (one["regime"], one["seed"]) == (regime, seed) and "epochs" in one]
            if len(alike) > 1:
                inputs = "equal" if len({one["crc"] for one in alike}) == 1 else "DIFFERENT"
                spread = max(
                    max(dice) - min(dice)
                    for dice in zip(*([epoch["dice"] for epoch in one["epochs"]] for one in alike), strict=True)
                )
                notes.append(
                    f"{regime}, seed {seed}: inputs {inputs}, Dice of an epoch differs by {spread:.4f} at most"
                )
    return [*text, "", *notes, "published: 28 049 s (PersistentDataset), 18 159 s (GDSDataset) to Dice 0.75"]


def plot(lines: list[dict[str, Any]], path: Path) -> None:
    """Dice over seconds: a panel for each regime, a line for each run, a point for each epoch."""
    done = [line for line in lines if "epochs" in line]
    regimes = list(dict.fromkeys(line["regime"] for line in done)) or ["no run is done"]
    width, height = LEFT + len(regimes) * (WIDE + 45), TOP + HIGH + 85
    text = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, regime in enumerate(regimes):
        text += panel(regime, [line for line in done if line["regime"] == regime], LEFT + number * (WIDE + 45))
    seeds = ", ".join(map(str, dict.fromkeys(line["seed"] for line in done)))
    text.append(f'<text x="{LEFT}" y="{height - 28}">a line for each seed ({seeds}), a point for each epoch</text>')
    for number, (arm, colour) in enumerate(COLOURS.items()):
        x = LEFT + 110 * number
        text.append(f'<path d="M{x} {height - 14}h20" stroke="{colour}" stroke-width="2"/>')
        text.append(f'<text x="{x + 26}" y="{height - 10}">{arm}</text>')
    path.write_text("\n".join([*text, "</svg>"]) + "\n")


def panel(regime: str, lines: list[dict[str, Any]], left: float) -> list[str]:
    longest = max((sum(epoch["seconds"] for epoch in line["epochs"]) for line in lines), default=1.0) * 1.05
    bottom = TOP + HIGH

    def at(seconds: float, dice: float) -> tuple[float, float]:
        return left + WIDE * seconds / longest, bottom - HIGH * dice

    text = [
        f'<text x="{left}" y="{TOP - 14}" font-weight="bold">{regime}</text>',
        f'<path d="M{left} {TOP}V{bottom}H{left + WIDE}" fill="none" stroke="black"/>',
        f'<path d="M{left} {at(0, REACHED)[1]}h{WIDE}" stroke="#bbbbbb" stroke-dasharray="4 4"/>',
        f'<text x="{left + WIDE}" y="{bottom + 32}" text-anchor="end">seconds</text>',
        f'<text x="{left + 6}" y="{TOP + 4}">Dice</text>',
    ]
    for dice in (0.0, 0.25, 0.5, REACHED, 1.0):
        text.append(f'<text x="{left - 6}" y="{at(0, dice)[1] + 4:.1f}" text-anchor="end">{dice:g}</text>')
    tick = next(step for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000) if longest / step <= 8 or step == 5000)
    for number in range(int(longest / tick) + 1):
        x = at(number * tick, 0)[0]
        text.append(f'<path d="M{x:.1f} {bottom}v4" stroke="black"/>')
        text.append(f'<text x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{number * tick:g}</text>')
    for line in lines:
        total, points = 0.0, []
        for epoch in line["epochs"]:
            total += epoch["seconds"]
            points.append(at(total, epoch["dice"]))
        colour, path = COLOURS[line["arm"]], " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        text.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        text += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in points]
    return text
