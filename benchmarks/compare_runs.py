"""Runs for `benchmarks/compare.py`: the pipeline through its command, and programs that measure themselves.

Both give a `Measured` with the rate and the CPU time per step, after the start. The CPU time of the pipeline's
processes is sampled from outside; TensorBoard's files show when the trainer had learned from which steps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).resolve().parents[1]
EVERY_S = 0.1
"""Seconds between two samples of CPU times; the system counts CPU time in hundredths of a second."""
LEARNED = "Losses/Policy Loss"
"""A statistic that is reported only by updates."""


@dataclass(frozen=True)
class Measured:
    """A run's measurements, without its first steps."""

    steps_per_s: float
    cpu_us: float
    """CPU time per step of the busiest process, in microseconds."""
    all_cpu_us: float
    """CPU time per step of all processes together, in microseconds."""
    stages: Mapping[str, float] = field(default_factory=dict)
    """Microseconds per step by stage: wall-clock time for the pipeline, CPU time for programs."""
    score: float = float("nan")
    """Mean return of the last training episodes."""
    solved_at: int | None = None
    memory_mb: float = 0.0
    """Maximum resident memory of all processes together, in MB."""
    first_update_s: float = float("nan")
    """Seconds from the command to the first summary after an update."""
    seconds: float = 0.0
    """Seconds from the start of the command to its end."""


def program(command: Sequence[str]) -> Measured:
    """Run a program that prints its measurements as a line of JSON."""
    began = time.perf_counter()
    ran = subprocess.run(list(command), cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"{' '.join(command)} ended with status {ran.returncode}:\n{ran.stderr}")
    told = json.loads(ran.stdout.splitlines()[-1])
    cpu_us = 1e6 * told["cpu_s"] / told["steps"]
    return Measured(
        told["steps"] / told["seconds"], cpu_us, cpu_us, told["stages"], told["score"], told["solved_at"],
        seconds=time.perf_counter() - began,
    )  # fmt: skip


@dataclass(frozen=True)
class Finished:
    """A finished run of the command: its times, its folder, and its processes' CPU times and memory."""

    began: float
    ended: float
    folder: Path
    samples: list[tuple[float, dict[int, float]]]
    memory_mb: float

    def cpu_s(self, begin: float, end: float) -> dict[int, float]:
        """Return each process's CPU seconds between two moments, by process id."""
        times = [when for when, _ in self.samples]
        used = {}
        for pid in {pid for _, found in self.samples for pid in found}:
            counted = np.maximum.accumulate([found.get(pid, 0.0) for _, found in self.samples])
            at_begin, at_end = np.interp([begin, end], times, counted)
            used[pid] = float(at_end - at_begin)
        return used

    def scalars(self, behavior: str, name: str) -> list[tuple[int, float, float]]:
        """Return step, time and value of a statistic in each summary; empty if it was never reported."""
        events = EventAccumulator(str(self.folder / behavior), size_guidance={"scalars": 0}).Reload()
        if name not in events.Tags()["scalars"]:
            return []
        return [(each.step, each.wall_time, each.value) for each in events.Scalars(name)]

    def stages(self, behavior: str, step_us: float, steps: int) -> dict[str, float]:
        """Return microseconds per step from the run's own statistics.

        Args:
            behavior: the run's only behaviour.
            step_us: the run's microseconds per step.
            steps: number of steps from which the trainer learned.
        """

        def mean(category: str, name: str) -> float:
            return float(np.mean([value for *_, value in self.scalars(category, name)] or [0.0]))

        *_, (_, _, updates) = self.scalars(behavior, "Pipeline/Updates")
        return {
            "deciding": step_us * mean("Pipeline", "Busy/actors/policies"),
            "stepping": step_us * mean("Pipeline", "Busy/actors/environment"),
            "update": 1e6 * updates * mean(behavior, "Pipeline/Update Duration") / steps,
        }


def command(yaml: Path, sets: Sequence[str], seed: int, results: Path, checkout: Path = ROOT) -> Finished:
    """Run `bin/run-pipeline` of a checkout to its end, and watch its processes."""
    words = [sys.executable, str(checkout / "bin/run-pipeline"), str(yaml), "--seed", str(seed), "--force"]
    words += ["--run-id", "compared", "--results-dir", str(results), *(w for s in sets for w in ("--set", s))]
    began = time.time()
    with tempfile.TemporaryFile() as output:
        with subprocess.Popen(words, cwd=checkout, env=environment(), stdout=output, stderr=output) as process:
            samples, memory = _watch(process)
        ended = time.time()
        if process.returncode:
            output.seek(0)
            tail = output.read().decode(errors="replace")[-4000:]
            raise SystemExit(f"{' '.join(words)} ended with status {process.returncode}:\n{tail}")
    return Finished(began, ended, results / "compared", samples, memory)


def pipeline(
    example: str,
    behavior: str,
    sets: Sequence[str],
    seed: int,
    steps: int | None,
    first: int,
    *,
    warm_up: int = 0,
    mark: float = float("inf"),
) -> Measured:
    """Train an example for a number of steps; return the measurements after the first steps.

    Args:
        example: path of a YAML file, relative to the repository's root.
        behavior: the example's only behaviour.
        sets: keys of the example and their values, as for `--set`.
        seed: the run's seed.
        steps: number of steps, with 25 summaries; None if `sets` sets it.
        first: number of steps to leave out of the measurements.
        warm_up: number of steps from which the trainer does not learn.
        mark: mean return of a summary at which the example counts as solved.
    """
    block, changes = f"behaviors.{behavior}", list[str]()
    if steps is not None:
        changes = [f"{block}.max_steps={steps}", f"{block}.summary_freq={max(1, steps // 25)}"]
    with tempfile.TemporaryDirectory() as results:
        path = ROOT / example
        return measured(command(path, [*changes, *sets], seed, Path(results)), behavior, first, warm_up, mark)


def measured(run: Finished, behavior: str, first: int, warm_up: int = 0, mark: float = float("inf")) -> Measured:
    """Return a finished run's measurements from its first summary after `first` steps."""
    learned = run.scalars(behavior, LEARNED)
    counted = [(step, when) for step, when, _ in learned if step >= first]
    if len(counted) < 2:
        raise SystemExit(f"{run.folder}: {len(counted)} summaries after step {first}; expected two, from more steps")
    (from_step, begin), (to_step, end) = counted[0], counted[-1]
    used, steps = run.cpu_s(begin, end), to_step - from_step
    returns = run.scalars(behavior, "Environment/Cumulative Reward")
    return Measured(
        steps / (end - begin),
        1e6 * max(used.values()) / steps,
        1e6 * sum(used.values()) / steps,
        run.stages(behavior, 1e6 * (end - begin) / steps, to_step - warm_up),
        returns[-1][2] if returns else float("nan"),
        next((step for step, _, value in returns if value >= mark), None),
        run.memory_mb,
        learned[0][1] - run.began,
        run.ended - run.began,
    )


def environment() -> dict[str, str]:
    """Return the environment for one thread per process, without PYTHONPATH: a checkout finds its own packages."""
    left_out = ("PYTHONPATH", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**kept, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def _watch(process: subprocess.Popen[bytes]) -> tuple[list[tuple[float, dict[int, float]]], float]:
    """Return CPU times by process until the command ends, and the maximum memory of all processes, in MB."""
    main, samples, memory = psutil.Process(process.pid), [], 0.0
    seen = [main]
    while process.poll() is None:
        found, resident = {}, 0
        try:
            # Listing all processes costs more than sampling the known ones.
            seen = [main, *main.children(recursive=True)] if len(samples) % 8 == 0 else seen
        except psutil.NoSuchProcess:
            break
        for each in seen:
            try:
                times, resident = each.cpu_times(), resident + each.memory_info().rss
                found[each.pid] = times.user + times.system
            except psutil.NoSuchProcess:
                continue
        samples.append((time.time(), found))
        memory = max(memory, resident / 1e6)
        time.sleep(EVERY_S)
    return samples, memory
