"""Bars as an SVG file with a style of its own: the colours and type of the report, light and dark."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

WIDTH, NAMES, ROW, GAP, TOP = 760, 290, 16, 10, 58
STYLE = """
text { font: 12px system-ui, "Segoe UI", Roboto, Arial, sans-serif; fill: #1b1f24 }
.title { font-weight: 600; font-size: 14px } .soft { fill: #5b6570 } .grid { stroke: #d5dae0 }
.one { stroke: #1b1f24; stroke-dasharray: 2 3 } .b0 { fill: #0072b2 } .b1 { fill: #d55e00 } .paper { fill: #fff }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e9ed } .soft { fill: #9aa5b1 } .grid { stroke: #39424d } .one { stroke: #e6e9ed }
  .b0 { fill: #56b4e9 } .b1 { fill: #f0a04b } .paper { fill: #14181d }
}
"""


@dataclass
class Bar:
    """A name, and the values of its bars: (whose, value)."""

    name: str
    values: list[tuple[str, float]]


def step(most: float) -> float:
    """A round step that gives four to eight lines."""
    for exponent in range(-3, 9):
        for digit in (1, 2, 5):
            if most / (digit * 10.0**exponent) <= 8:
                return digit * 10.0**exponent
    return most


def draw(title: str, unit: str, bars: list[Bar], mark: float | None = None) -> str:
    """The bars on one linear axis from 0, with a dashed line at `mark`."""
    most = max(value for bar in bars for _, value in bar.values)
    line = step(most)
    room = WIDTH - NAMES - 70
    height = TOP + sum(ROW * len(bar.values) + GAP for bar in bars) + 24
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">',
        f'<style>{STYLE}</style><rect class="paper" width="{WIDTH}" height="{height}"/>',
        f'<text class="title" x="8" y="20">{escape(title)}</text>',
        f'<text class="soft" x="{NAMES}" y="{TOP - 10}">{escape(unit)}</text>',
    ]
    if mark is None:
        out.append(f'<rect class="b0" x="8" y="{TOP - 19}" width="12" height="10"/><text x="25" y="{TOP - 10}">forebay</text>')
        out.append(f'<rect class="b1" x="90" y="{TOP - 19}" width="12" height="10"/><text x="107" y="{TOP - 10}">best peer</text>')
    value = 0.0
    while value <= most * 1.0001:
        x = NAMES + room * value / most
        out.append(f'<path class="grid" d="M{x:.1f} {TOP}V{height - 22}"/>')
        out.append(f'<text class="soft" x="{x:.1f}" y="{height - 8}" text-anchor="middle">{value:g}</text>')
        value += line
    y = float(TOP)
    for bar in bars:
        out.append(f'<text x="{NAMES - 8}" y="{y + ROW * len(bar.values) / 2 + 5:.1f}" text-anchor="end">{escape(bar.name)}</text>')
        for i, (whose, value) in enumerate(bar.values):
            wide = room * value / most
            out.append(f'<rect class="b{i}" x="{NAMES}" y="{y + 2:.1f}" width="{wide:.1f}" height="{ROW - 3}"/>')
            words = f"{value:.3g}" if value < 1000 else f"{value:.0f}"
            note = "" if whose in ("forebay", "ratio to the peer") else f" {whose}"
            x = NAMES + wide + 5
            if x + 6.5 * len(words + note) > WIDTH:
                note = ""
            out.append(f'<text class="soft" x="{x:.1f}" y="{y + ROW - 4:.1f}">{escape(words + note)}</text>')
            y += ROW
        y += GAP
    if mark is not None:
        x = NAMES + room * mark / most
        out.append(f'<path class="one" d="M{x:.1f} {TOP - 4}V{height - 22}"/>')
    return "\n".join([*out, "</svg>"]) + "\n"
