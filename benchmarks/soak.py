"""Watches a long run: `python benchmarks/soak.py --minutes 30 [--kill-every 20]`; Linux only.

Trains a small self-play run with the real command, at a game's pace, and if requested kills an actor (`kill -9`) at
regular intervals. Every few seconds, it samples main and each host: memory, file descriptors, threads, shared memory,
steps per second, and CPU time per step, which other programs on the machine disturb less. It writes `soak.csv` and
`soak.svg` to --out and reports whether each series is flat: the Theil-Sen slope, which is the median of the slopes
between all pairs of samples after the warm-up, is compared with a tolerance. The exit status is 1 if a series is not
flat. Instead of running, `--plot OUT.svg A B …` draws several of these folders side by side.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from headrace.stages.environments.protocol import StepResult  # noqa: E402
from headrace.stages.games.volley import VolleyGroup  # noqa: E402

TICK_S = 0.01
"""Seconds per tick of the game: at this pace, other work on the machine hardly affects the rate."""
SAMPLE_EVERY_S = 5.0
WARM_UP = 0.2
"""Fraction of the run that counts as warm-up."""
RUN: dict[str, Any] = {
    "environment": {"kind": "gymnasium", "factory": "benchmarks.soak:PacedVolley", "num_envs": 16},
    "env_settings": {"seed": 1, "max_lifetime_restarts": -1, "restarts_rate_limit_n": -1},
    "behaviors": {
        "Volley": {
            "trainer_type": "ppo",
            "max_steps": 10**9,
            "time_horizon": 32,
            "summary_freq": 5000,
            "checkpoint_interval": 20_000,
            "hyperparameters": {"buffer_size": 2048, "batch_size": 256, "num_epoch": 3},
            "network_settings": {"hidden_units": 64, "num_layers": 2, "normalize": True},
            "self_play": {"save_steps": 5000, "team_change": 20_000, "swap_steps": 5000, "window": 10},
        }
    },
}
UNITS = {"MB": 4.0, "descriptors": 2.0, "threads": 1.0, "steps/s": 0.1, "µs": 0.1}
"""By unit: the largest change over the measured time that counts as flat; for rates and costs, a fraction of the
median.
"""
CPU_TIME = "CPU time so far of "


class PacedVolley(VolleyGroup):
    """The built-in game, with at most one tick per `TICK_S`."""

    def step(self, *arguments: Any, **named: Any) -> StepResult:
        """Step at the game's pace."""
        time.sleep(TICK_S)
        return super().step(*arguments, **named)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--kill-every", type=float, default=0.0, metavar="SECONDS", help="0: never")
    parser.add_argument("--out", type=Path, default=Path("results/soak"), help="a folder; %(default)s")
    parser.add_argument("--plot", nargs="+", type=Path, metavar=("OUT.svg", "FOLDER"), help="draw soaks side by side")
    options = parser.parse_args()
    if options.plot:
        target, *folders = options.plot
        target.write_text(draw({folder.name: read(folder / "soak.csv") for folder in folders}))
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    series, status, kills = soak(options.out, options.minutes * 60, options.kill_every)
    write(options.out / "soak.csv", series)
    (options.out / "soak.svg").write_text(draw({options.out.name: series}))
    print(f"the command ended with status {status}; {kills} actors were killed")
    return max(status, int(not all(judge(series))))


Series = dict[str, list[tuple[float, float]]]
"""Series of (seconds, value) pairs, by `what of whom [unit]`."""


def soak(folder: Path, seconds: float, kill_every_s: float) -> tuple[Series, int, int]:
    """Run, sample and kill; return the series, the command's status and the number of kills."""
    config = folder / "soak.yaml"
    config.write_text(yaml.safe_dump(RUN))
    log = folder / "soak.log"
    line = [sys.executable, str(ROOT / "bin" / "run-pipeline"), str(config), "--run-id", "run", "--force"]
    with log.open("wb") as output:
        command = subprocess.Popen(
            [*line, "--results-dir", str(folder / "results")],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    series: Series = {}
    kills = 0
    began = time.monotonic()
    next_kill = kill_every_s or seconds + 1
    while (now := time.monotonic() - began) < seconds and command.poll() is None:
        if now >= next_kill:
            next_kill += kill_every_s
            for pid, name in hosts_of(command.pid):
                if name.startswith("actor"):
                    os.kill(pid, signal.SIGKILL)
                    kills += 1
        for key, value in sample(command.pid):
            series.setdefault(key, []).append((now, value))
        time.sleep(max(0.0, min(SAMPLE_EVERY_S - (time.monotonic() - began - now), next_kill - now)))
    command.send_signal(signal.SIGINT)
    status = command.wait(120)
    steps = summaries(log.read_text())
    series["steps per second [steps/s]"] = [(t, (n - m) / (t - s)) for (s, m), (t, n) in pairwise(steps)]
    for key in [key for key in series if key.startswith(CPU_TIME)]:
        name = key.removeprefix(CPU_TIME).partition(" ")[0]
        series[f"CPU time per step of {name} [µs]"] = [*per_step(series.pop(key), steps)]
    return series, status, kills


def sample(main_pid: int) -> Iterator[tuple[str, float]]:
    """Yield the current value of each series, for main and each of its hosts."""
    shared = share = 0.0
    for pid, name in [(main_pid, "main"), *hosts_of(main_pid)]:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
            memory = dict(re.findall(r"^(\w+): +(\d+) kB", rollup, re.M))
            ticks = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[11:13]
            descriptors = len(os.listdir(f"/proc/{pid}/fd"))
            threads = len(os.listdir(f"/proc/{pid}/task"))
        except OSError:  # the process has just ended
            continue
        if "Pss" not in memory:
            continue
        shared += int(memory["Pss_Shmem"]) / 1024
        share += int(memory["Pss"]) / 1024
        yield f"resident set of {name} [MB]", int(memory["Rss"]) / 1024
        yield f"heap of {name} [MB]", int(memory["Anonymous"]) / 1024
        if not name.startswith(("actor", "sweeper")):  # an actor's CPU time restarts with each replacement
            yield f"{CPU_TIME}{name} [s]", sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        yield f"descriptors of {name} [descriptors]", descriptors
        yield f"threads of {name} [threads]", threads
    yield "shared memory of all [MB]", shared
    yield "share of the machine's memory of all [MB]", share
    yield "files in /dev/shm of all [descriptors]", len(os.listdir("/dev/shm"))


def hosts_of(main_pid: int) -> list[tuple[int, str]]:
    """Return the process ids and names of main's children."""
    found = []
    for child in Path(f"/proc/{main_pid}/task/{main_pid}/children").read_text(encoding="utf-8").split():
        try:
            words = Path(f"/proc/{child}/cmdline").read_text(encoding="utf-8").split("\0")
        except OSError:
            continue
        if "headrace.pipeline.hosts.child" in words:
            found.append((int(child), words[words.index("headrace.pipeline.hosts.child") + 1]))
        elif any(word.endswith("sweeper.py") for word in words):
            found.append((int(child), "sweeper"))
    return found


def summaries(log: str) -> list[tuple[float, int]]:
    """Return the seconds and steps of the summaries on the console."""
    found = [(float(t), int(n)) for n, t in re.findall(r"Step: (\d+)\. Time Elapsed: ([\d.]+) s", log)]
    points: list[tuple[float, int]] = []
    for t, n in found:
        if not points or (t > points[-1][0] and n > points[-1][1]):
            points.append((t, n))
    return points


def per_step(cpu_s: list[tuple[float, float]], steps: list[tuple[float, int]]) -> Iterator[tuple[float, float]]:
    """Yield the CPU time per step, in microseconds, over windows of a minute."""
    times, used = zip(*cpu_s, strict=True)
    began, count = steps[0]
    for t, n in steps:
        if t - began >= 60 and t <= times[-1]:
            yield t, float(np.interp(t, times, used) - np.interp(began, times, used)) / (n - count) * 1e6
            began, count = t, n


def judge(series: Series) -> list[bool]:
    """Print each series' level and change, and return whether each is flat."""
    flat = []
    end = max(t for points in series.values() for t, _ in points)
    print(f"{'after the warm-up of ' + format(WARM_UP * end, '.0f') + ' s':46} median       change over the rest")
    for key, points in series.items():
        points = [(t, v) for t, v in points if t >= WARM_UP * end]
        if len(points) < 10 or key.startswith("share of the machine"):  # which other programs also change
            continue
        level = statistics.median(v for _, v in points)
        change = slope(points) * (1 - WARM_UP) * end
        unit = key.rpartition("[")[2].rstrip("]")
        tolerance = UNITS[unit] * (level if unit in ("steps/s", "µs") else 1)
        flat.append((-change if unit == "steps/s" else change) <= tolerance)  # the other direction is harmless
        print(f"{key:46} {level:9.1f} {change:+12.2f}   {'flat' if flat[-1] else 'NOT FLAT'}")
    return flat


def slope(points: list[tuple[float, float]], most: int = 400) -> float:
    """Return the Theil-Sen slope; a long series is reduced to every n-th sample."""
    points = points[:: len(points) // most + 1]
    return statistics.median((w - v) / (u - t) for (t, v), (u, w) in combinations(points, 2) if u > t)


def write(path: Path, series: Series) -> None:
    """Write a CSV file with one line per value."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("seconds", "series", "value"))
        writer.writerows((f"{t:.1f}", key, f"{v:.3f}") for key, points in series.items() for t, v in points)


def read(path: Path) -> Series:
    """Read a file that `write` has written."""
    series: Series = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            series.setdefault(row["series"], []).append((float(row["seconds"]), float(row["value"])))
    return series


PANELS = ("heap", "descriptors", "threads", "shared memory", "steps per second", "CPU time per step")
COLOURS = ("#1f6fb4", "#c44e2b", "#3a8f4d", "#7a4fa3", "#888888")
WIDTH, HEIGHT, GAP = 420, 110, 46
POINTS = 150
"""Maximum number of points drawn per series."""


def draw(soaks: dict[str, Series]) -> str:
    """Draw soaks side by side: a row of panels for each kind of series, with the same scale within a row."""
    parts = []
    for row, panel in enumerate(PANELS):
        chosen = [{k: v for k, v in series.items() if k.startswith(panel)} for series in soaks.values()]
        top = 1.1 * max((v for series in chosen for points in series.values() for _, v in points), default=1.0)
        for column, (name, series) in enumerate(zip(soaks, chosen, strict=True)):
            x, y = GAP + column * (WIDTH + GAP), GAP + row * (HEIGHT + GAP)
            unit = next(iter(series), "[]").rpartition("[")[2].rstrip("]")
            title = f"{name}: {panel}" + ("" if unit in panel or "per" in panel else f" [{unit}]")
            parts += _panel(x, y, title, series, top)
    width, height = GAP + len(soaks) * (WIDTH + GAP), GAP + len(PANELS) * (HEIGHT + GAP)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
    return "\n".join([head + 'font-size="11"><rect width="100%" height="100%" fill="white"/>', *parts, "</svg>\n"])


def _panel(x: int, y: int, title: str, series: Series, top: float) -> Iterator[str]:
    end = max((t for points in series.values() for t, _ in points), default=1.0)
    yield f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#bbb"/>'
    yield f'<text x="{x}" y="{y - 6}">{title}</text>'
    yield f'<text x="{x - 4}" y="{y + 9}" text-anchor="end">{top:.3g}</text>'
    yield f'<text x="{x - 4}" y="{y + HEIGHT}" text-anchor="end">0</text>'
    yield f'<text x="{x + WIDTH}" y="{y + HEIGHT + 13}" text-anchor="end">{end / 60:.0f} min</text>'
    for index, (key, points) in enumerate(sorted(series.items())):
        colour = COLOURS[index % len(COLOURS)]
        drawn = points[:: len(points) // POINTS + 1]
        line = " ".join(f"{x + t / end * WIDTH:.0f},{y + HEIGHT - v / top * HEIGHT:.0f}" for t, v in drawn)
        yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.2"/>'
        whose = key.rpartition(" [")[0].rpartition(" of ")[2]
        if len(series) > 1:
            at = x + 6 + 100 * index
            yield f'<text x="{at}" y="{y + HEIGHT + 13}" fill="{colour}">{whose}</text>'


if __name__ == "__main__":
    sys.exit(main())
