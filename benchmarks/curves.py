"""Curves of several seeds as SVG: the mean, and a band of one standard deviation around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev

COLOURS = ("#1f6fb4", "#c44e2b", "#3a8f4d", "#7a4fa3", "#888888")
WIDTH, HEIGHT, GAP = 420, 180, 56


@dataclass
class Panel:
    """One diagram.

    Attributes:
        title: what it shows.
        seeds: by the name of a curve, the values of each seed at each x.
        x_label: what x is, with its unit.
        top: the highest value that is shown; the lowest is `bottom`.
        spans: stretches of x that are named, from and to.
    """

    title: str
    seeds: Mapping[str, Mapping[float, Sequence[float]]]
    x_label: str
    top: float
    bottom: float = 0.0
    spans: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def draw(panels: Sequence[Panel]) -> str:
    """The panels side by side."""
    width, height = GAP + len(panels) * (WIDTH + GAP), HEIGHT + 2 * GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
    parts = [part for n, panel in enumerate(panels) for part in _drawn(panel, GAP + n * (WIDTH + GAP), GAP)]
    return "\n".join([head + 'font-size="11"><rect width="100%" height="100%" fill="white"/>', *parts, "</svg>\n"])


def _drawn(panel: Panel, left: float, top: float) -> Iterator[str]:
    xs = [x for curve in panel.seeds.values() for x in curve] + [x for span in panel.spans.values() for x in span]
    first, last = min(xs), max(xs)

    def across(x: float) -> float:
        return left + (x - first) / ((last - first) or 1.0) * WIDTH

    def down(value: float) -> float:
        share = (value - panel.bottom) / (panel.top - panel.bottom)
        return top + HEIGHT * (1.0 - min(max(share, 0.0), 1.0))

    for n, (name, (begin, end)) in enumerate(panel.spans.items()):
        at, until = across(max(begin, first)), across(min(end, last))
        shade = "#f4f4f4" if n % 2 else "#fff"
        yield f'<rect x="{at:.1f}" y="{top}" width="{until - at:.1f}" height="{HEIGHT}" fill="{shade}"/>'
        yield f'<text x="{(at + until) / 2:.0f}" y="{top - 6}" text-anchor="middle" fill="#777">{name}</text>'
    yield f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#bbb"/>'
    yield f'<text x="{left}" y="{top - 24}">{panel.title}</text>'
    for value in (panel.bottom, (panel.bottom + panel.top) / 2, panel.top):
        yield f'<text x="{left - 4}" y="{down(value) + 4:.0f}" text-anchor="end">{value:,.4g}</text>'
    for x in (first, (first + last) / 2, last):
        yield f'<text x="{across(x):.0f}" y="{top + HEIGHT + 14}" text-anchor="middle">{x:,.6g}</text>'
    yield f'<text x="{left + WIDTH / 2}" y="{top + HEIGHT + 28}" text-anchor="middle">{panel.x_label}</text>'
    for n, (name, curve) in enumerate(panel.seeds.items()):
        colour, points = COLOURS[n % len(COLOURS)], sorted(curve.items())
        spread = [(x, mean(v), stdev(v) if len(v) > 1 else 0.0) for x, v in points]
        edge = [(x, m + s) for x, m, s in spread] + [(x, m - s) for x, m, s in reversed(spread)]
        around, line = (
            " ".join(f"{across(x):.1f},{down(v):.1f}" for x, v in each)
            for each in (edge, [(x, m) for x, m, _ in spread])
        )
        yield f'<polygon points="{around}" fill="{colour}" fill-opacity="0.15"/>'
        yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        yield f'<text x="{left + 130 * n}" y="{top + HEIGHT + 44}" fill="{colour}">{name}</text>'
