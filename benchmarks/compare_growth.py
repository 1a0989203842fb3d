"""Measures how the pipeline's cost grows, for `benchmarks/compare.py`: one size at a time, the rest as in the example.

The sizes are environments, units, horizon and actors in config/examples/cartpole.yaml, behaviours in `crowd.yaml`
(eight agents each), and the window of snapshots in config/examples/volley.yaml, with games that restart at each swap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from statistics import median
from typing import Any

from compare_runs import Measured, pipeline

CARTPOLE, CROWD, VOLLEY = "config/examples/cartpole.yaml", "benchmarks/crowd.yaml", "config/examples/volley.yaml"
TOLERANCE = 0.15
"""How far an exponent may exceed the expected one, because small runs vary."""


@dataclass(frozen=True)
class Size:
    """A size that grows.

    Attributes:
        example: the example's YAML.
        behavior: the behaviour whose steps are counted.
        values: values of the size.
        keys: `--set` arguments, in which `{}` stands for the value.
        steps: number of steps of a run.
        cost: maximum exponent for the growth of the CPU time per step of all processes.
        memory: maximum exponent for the growth of memory.
    """

    example: str
    behavior: str
    values: Sequence[int]
    keys: Sequence[str]
    steps: int
    cost: float = 0.0
    memory: float = 1.0


def _walkers(count: int) -> list[str]:
    roles = ", ".join(f'"walker{n}_*": {{behavior: Walker{n}, team: 0}}' for n in range(count))
    blocks = ", ".join(f"Walker{n}: {{}}" for n in range(count))
    return [f"environment.behaviors={{{roles}}}", f"behaviors={{{blocks}}}"]


_HYPER = "behaviors.CartPole.hyperparameters"
SIZES: Mapping[str, Size] = {
    "environments": Size(
        CARTPOLE,
        "CartPole",
        (16, 64, 256, 1024),
        ("environment.num_envs={}", f"{_HYPER}.buffer_size=32768", f"{_HYPER}.batch_size=2048"),
        262_144,
    ),
    # Two layers of n units cost n².
    "units of both layers": Size(
        CARTPOLE,
        "CartPole",
        (32, 64, 128, 256, 512),
        ("behaviors.CartPole.network_settings.hidden_units={}",),
        40_960,
        cost=2.0,
        memory=2.0,
    ),
    "time_horizon": Size(
        CARTPOLE,
        "CartPole",
        (16, 64, 256, 512),
        ("behaviors.CartPole.time_horizon={}", f"{_HYPER}.buffer_size=32768", f"{_HYPER}.batch_size=2048"),
        262_144,
    ),
    "behaviours": Size(CROWD, "Walker0", (1, 2, 4, 8), ("environment.options.behaviors={}",), 40_960, cost=1.0),
    "actors": Size(CARTPOLE, "CartPole", (1, 2, 4), ("pipeline.hosts.actors.replicas={}",), 163_840, cost=1.0),
    "snapshots": Size(
        VOLLEY,
        "Volley",
        (2, 10, 50, 100),
        (
            "behaviors.Volley.self_play.window={}",
            "behaviors.Volley.self_play.save_steps=8192",
            "behaviors.Volley.self_play.swap_steps=8192",
        ),
        983_040,
    ),
}


def grown(name: str, value: int, seed: int, quick: bool) -> Measured:
    """Measure one run with one value of a size."""
    size = SIZES[name]
    sets = [key.format(value) for key in size.keys]
    steps = size.steps // 4 if quick else size.steps
    if size.example == CROWD:
        sets += [
            *_walkers(value),
            f"default_settings.max_steps={steps}",
            f"default_settings.summary_freq={steps // 10}",
        ]
        return pipeline(size.example, size.behavior, sets, seed, None, steps // 5)
    return pipeline(size.example, size.behavior, sets, seed, steps, steps // 5)


def exponent(points: Mapping[int, float]) -> float:
    """Return the exponent p for which the values grow like x^p: the slope of the line through their logarithms."""
    xs, ys = [log(x) for x in points], [log(y) for y in points.values()]
    middle, height = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - middle) * (y - height) for x, y in zip(xs, ys, strict=True)) / sum((x - middle) ** 2 for x in xs)


def table(name: str, found: Mapping[int, Sequence[Measured]]) -> list[str]:
    """Return rates, costs and memory by size as a table, and whether their growth is within bounds."""
    size = SIZES[name]
    cost = {value: median(run.all_cpu_us for run in runs) for value, runs in found.items()}
    memory = {value: median(run.memory_mb for run in runs) for value, runs in found.items()}
    rows = [f"| {name} | steps/s | CPU µs per step, all processes | MB |", "|---|---|---|---|"]
    for value, runs in found.items():
        rate = median(run.steps_per_s for run in runs)
        rows.append(f"| {value} | {rate:,.0f} | {cost[value]:.1f} | {memory[value]:,.0f} |")
    if len(found) < 2:
        return rows
    for what, points, most in (("CPU time per step", cost, size.cost), ("memory", memory, size.memory)):
        power = exponent(points)
        verdict = "" if power <= most + TOLERANCE else f", missed: at most {most:g}"
        rows.append(f"| growth exponent of {what}: {power:.2f}{verdict} | | | |")
    return rows


def draw(found: Mapping[str, Mapping[int, Sequence[Measured]]], path: Any) -> None:
    """Draw steps per second and memory against each size, on logarithmic axes with the same limits for all sizes."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, (len(found) + 1) // 2, figsize=(12, 6), squeeze=False, layout="constrained")
    runs = [run for by_size in found.values() for some in by_size.values() for run in some]
    for axis, (name, by_size) in zip(axes.ravel(), found.items(), strict=False):
        sizes = list(by_size)
        memory = axis.twinx()
        for side, what, colour in ((axis, "steps_per_s", "#1f6fb4"), (memory, "memory_mb", "#c44e2b")):
            values = [median(getattr(run, what) for run in by_size[size]) for size in sizes]
            side.loglog(sizes, values, "o-", color=colour)
            side.set_ylim(min(getattr(run, what) for run in runs) / 2, 2 * max(getattr(run, what) for run in runs))
            for formats in (side.yaxis.set_major_formatter, side.yaxis.set_minor_formatter):
                formats("{x:,.0f}")
            side.tick_params(axis="y", which="both", colors=colour)
        axis.set_xlabel(name)
        axis.set_xticks(sizes, [str(size) for size in sizes])
        axis.minorticks_off()
    for axis in axes.ravel()[len(found) :]:
        axis.remove()
    figure.suptitle("steps per second (blue) and memory of all processes in MB (red)")
    figure.savefig(path)
