"""What the live page costs: CPU time of all processes of a run, without the page and with it, in pairs.

    python benchmarks/monitoring.py --pairs 10
    python benchmarks/monitoring.py --pairs 3 --viewers 50
    python benchmarks/monitoring.py --pairs 3 --viewers 50 --deaf

Both runs of a pair have the seed and the steps in common. A viewer does what the page does: it reads the curves once,
then the stream of states. One that is deaf opens the stream and reads nothing. Memory is main's largest resident set.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import resource
import subprocess
import sys
import tempfile
import threading
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, stdev

import psutil

ROOT = Path(__file__).resolve().parent.parent
BEHAVIOR = "Volley"


@dataclass(frozen=True)
class Cost:
    """What one run took."""

    cpu_s: float
    main_mb: float
    states: int


class Viewers:
    """Threads that look at a page until it is gone.

    Args:
        address: the page's.
        count: how many.
        deaf: True if they read nothing.
    """

    def __init__(self, address: str, count: int, deaf: bool) -> None:
        self.states = 0
        self._address = address
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._hang if deaf else self._look) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait until all have seen the end."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _look(self) -> None:
        try:
            with urllib.request.urlopen(f"{self._address}api/runs/live/curves", timeout=60) as answer:
                answer.read()
            with urllib.request.urlopen(f"{self._address}api/runs/live/stream", timeout=60) as stream:
                for line in stream:
                    self.states += line.startswith(b"data:")
        except OSError:
            return  # the run has ended

    def _hang(self) -> None:
        try:
            with urllib.request.urlopen(f"{self._address}api/runs/live/stream", timeout=60):
                self._over.wait()
        except OSError:
            return


def run(seed: int, steps: int, viewers: int | None, deaf: bool) -> Cost:
    """Train for so many steps; None for a run without the page."""
    with tempfile.TemporaryDirectory() as results:
        command = [sys.executable, str(ROOT / "bin/run-pipeline"), str(ROOT / "config/examples/volley.yaml")]
        command += ["--seed", str(seed), "--run-id", "bench", "--results-dir", results]
        command += ["--set", f"behaviors.{BEHAVIOR}.max_steps={steps}"]
        command += [] if viewers is None else ["--monitor=0"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        looking, largest = None, 0
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            lines: queue.Queue[str | None] = queue.Queue()
            reader = threading.Thread(target=_read, args=(process, lines))
            reader.start()
            watched = psutil.Process(process.pid)
            while (line := lines.get()) is not None:
                found = re.search(r"live page of this run: (http://\S+)", line)
                if found and viewers:
                    looking = Viewers(found[1], viewers, deaf)
                try:
                    largest = max(largest, watched.memory_info().rss)
                except psutil.Error:
                    break
            reader.join()
            if looking is not None:
                looking.join()
        if process.returncode:
            raise SystemExit(f"the run ended with status {process.returncode}: {' '.join(command)}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(cpu, largest / 1e6, looking.states if looking is not None else 0)


def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def main() -> None:
    """Print each pair, and what the page costs in the mean."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--viewers", type=int, default=1)
    parser.add_argument("--deaf", action="store_true", help="the viewers read nothing")
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    ratios = []
    for seed in range(asked.pairs):
        costs: dict[bool, Cost] = {}
        for shown in (False, True) if seed % 2 else (True, False):  # a drift of the machine favours nobody
            costs[shown] = run(seed, asked.steps, asked.viewers if shown else None, asked.deaf)
        ratios.append(costs[True].cpu_s / costs[False].cpu_s)
        print(
            f"{seed}: {costs[False].cpu_s:.1f} s of CPU, with the page {costs[True].cpu_s:.1f}: {ratios[-1]:.3f};"
            f" main {costs[False].main_mb:.0f} MB, {costs[True].main_mb:.0f}; {costs[True].states} states read",
            flush=True,
        )
    spread = f" ± {stdev(ratios) / len(ratios) ** 0.5:.3f}" if len(ratios) > 1 else ""
    print(f"mean of the ratios {mean(ratios):.3f}{spread}, median {median(ratios):.3f}")


if __name__ == "__main__":
    main()
