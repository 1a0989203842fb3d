"""The report of `benchmarks/compare.py`: tables, the roofline, a plot, and a section of docs/performance.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from compare_machine import FLOP, products_per_s
from compare_runs import Measured
from compare_workloads import BF16, NUMPY, OURS, Workload

BEGIN, END = "<!-- benchmarks/compare.py --write -->", "<!-- end of benchmarks/compare.py --write -->"
BOUND = ("W2", "Pong")
"""Workloads with a bar for the matrix products' share; in W1 and W4, small layers and environments take most time."""
Found = Mapping[str, Sequence[Measured]]
"""Each contestant's measurements, one per round."""


def table(name: str, workload: Workload, found: Found) -> list[str]:
    """Return a table of each contestant's medians over the rounds."""
    if workload.once:
        rows = [
            f"**{name}**: {workload.title}.\n",
            "| | s | CPU s, busiest process | all processes |",
            "|---|---|---|---|",
        ]
        for contestant, runs in found.items():
            seconds, cpu, every = _medians(runs, "first_update_s", "cpu_us", "all_cpu_us")
            rows.append(f"| {contestant} | {seconds:.2f} | {cpu / 1e6:.2f} | {every / 1e6:.2f} |")
        return rows
    rows = [
        f"**{name}**: {workload.title}.\n",
        "| | steps/s | CPU µs per step, busiest process | all processes | µs deciding / stepping / update | s in total "
        "| score | solved |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for contestant, runs in found.items():
        stages = " / ".join(f"{median(run.stages[stage] for run in runs):.1f}" for stage in runs[0].stages) or "–"
        rate, cpu, every, seconds, score = _medians(runs, "steps_per_s", "cpu_us", "all_cpu_us", "seconds", "score")
        solved = f"{sum(run.solved_at is not None for run in runs)} of {len(runs)}"
        cells = f"{rate:,.0f} | {cpu:,.1f} | {every:,.1f} | {stages} | {seconds:.1f} | {score:.0f} | {solved}"
        rows.append(f"| {contestant} | {cells} |")
    return rows


def ratios(workload: Workload, found: Found) -> list[str]:
    """Return a table of median ratios, each computed within a round, with their bars."""
    rows = ["| | CPU time, busiest process | wall clock |", "|---|---|---|"]
    for bar in workload.bars:
        if bar.ours not in found or bar.other not in found:
            continue
        pairs = list(zip(found[bar.ours], found[bar.other], strict=True))
        cpu = median(other.cpu_us / ours.cpu_us for ours, other in pairs)
        clock = median(ours.steps_per_s / other.steps_per_s for ours, other in pairs)
        rows.append(f"| {bar.ours} : {bar.other} | {_told(cpu, bar.cpu)} | {_told(clock, bar.clock)} |")
    return rows if len(rows) > 2 else []


def roofline(name: str, found: Found) -> list[str]:
    """Return the time of the matrix products alone, and its fraction of the busiest process's time, as text."""
    if name not in FLOP:
        return []
    lines = [f"Roofline: a step's matrix products are {FLOP[name] / 1e6:,.2f} million multiplications and additions."]
    for contestant, half in ((OURS, False), (BF16, True)):
        if contestant in found:
            provider, rate = products_per_s(half)
            least, (cpu,) = 1e6 * FLOP[name] / rate, _medians(found[contestant], "cpu_us")
            kind = "bfloat16" if half else "float32"
            at = f"At {rate / 1e9:,.0f} GFLOP/s ({kind} by {provider}, one core), they take {least:,.1f} µs"
            bar = "" if half or name not in BOUND else " (bar 75%)" if least >= 0.75 * cpu else " (bar 75%, missed)"
            lines.append(f"{at}; “{contestant}” reaches {least / cpu:.0%} of this speed{bar}.")
    if OURS in found and NUMPY in found:
        update, (cpu,) = median(run.stages["update"] for run in found[NUMPY]), _medians(found[OURS], "cpu_us")
        reached = f"the learner of “{OURS}” reaches {update / cpu:.0%} of its speed"
        lines.append(f"NumPy's update alone takes {update:.1f} µs; {reached}.")
    return [" ".join(lines)]


def draw(found: Mapping[str, Found], path: Path) -> None:
    """Draw each contestant's CPU time per step, with a panel per workload."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(found), figsize=(4 * len(found), 3), squeeze=False, layout="constrained")
    for axis, (name, runs) in zip(axes[0], found.items(), strict=True):
        costs = {contestant: _medians(each, "cpu_us")[0] for contestant, each in runs.items()}
        colours = ["#1f6fb4" if contestant.startswith("Headrace") else "#888888" for contestant in costs]
        axis.barh(list(costs), list(costs.values()), color=colours)
        axis.invert_yaxis()
        axis.set_title(f"{name}: CPU µs per step")
    figure.savefig(path)


def write(page: Path, lines: Sequence[str]) -> None:
    """Replace the section of a page between its two marks.

    Raises:
        SystemExit: if the page lacks the marks.
    """
    text = page.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise SystemExit(f"{page}: no section between {BEGIN!r} and {END!r} to write into")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    page.write_text("\n".join([f"{before}{BEGIN}", *lines, f"{END}{after}"]), encoding="utf-8")


def _medians(runs: Sequence[Measured], *names: str) -> list[float]:
    return [median(getattr(run, name) for run in runs) for name in names]


def _told(ratio: float, bar: float | None) -> str:
    if bar is None:
        return f"{ratio:.2f}"
    return f"{ratio:.2f} (bar {bar:.3g}{'' if ratio >= bar else ', missed'})"
