"""`kill -9` of main, actors and learners at random moments: `python benchmarks/kill.py --times 1000`.

Three small runs are killed and resumed, over and over: self-play with a recording of the trainer's inlet, SAC with its
replay memory in the checkpoints, and PPO through many lessons. The kill of an actor or of a learner does not end its
run, one of main does; `--resume` goes on. The moments: the first 100 ms of a process, the seconds of the start, those
of training, and the beginning and end of a checkpoint, which are watched for.

After each kill it asserts that exit status and message are right, that no process and no temporary file is left, that
each checkpoint is whole, and that nothing is behind the last checkpoint that stood before the kill: steps,
ratings, lessons, the list in training_status.json and the recordings. `benchmarks/standing.py` has these checks.

Prints a table of the kills, and the violations with the folders that show them; status 1 if there is any. What is
killed when depends on `--seed` and the run's number, which a violation names, but for what the machine's timing adds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import pytest
from run_configs import TOLD_ENV, Plain, changed, sac, taught, volley
from runs import COMMAND, PATIENCE_S, Command
from standing import Progress, Standing, Violation, require

from headrace.pipeline.run_folder.checkpoint import numbered_folders

LIVES = 12
"""Starts of a run, at most, before a new one is begun."""
FOREVER = 10**9
RESTARTS = {"env_settings__max_lifetime_restarts": -1, "env_settings__restarts_rate_limit_n": -1}
VICTIMS = ("main", "actor", "learner")
MOMENTS = ("first 100 ms", "start", "training", "a checkpoint begins", "a checkpoint ends")


@dataclass(frozen=True)
class Scenario:
    """A run to kill."""

    name: str
    behavior: str
    plain: Plain
    beside: tuple[Path, ...] = ()


def scenarios() -> list[Scenario]:
    """The three runs: endless, with a checkpoint every fraction of a second."""
    lesson = {"behavior": "Guess", "min_lesson_length": 120, "threshold": -99}
    lessons = [{"name": f"L{i}", "value": 1 + i % 3, "completion_criteria": lesson} for i in range(200)]
    return [
        Scenario(
            "self-play",
            "Volley",
            changed(
                volley(record__edges=["trainer"], **RESTARTS),
                {
                    "behaviors__Volley__max_steps": FOREVER,
                    "behaviors__Volley__checkpoint_interval": 1500,
                    "behaviors__Volley__summary_freq": 5000,
                },
            ),
        ),
        Scenario(
            "replay memory",
            "Pendulum",
            changed(
                sac(**RESTARTS),
                {
                    "behaviors__Pendulum__max_steps": FOREVER,
                    "behaviors__Pendulum__checkpoint_interval": 150,
                    "behaviors__Pendulum__hyperparameters__buffer_size": 5000,
                },
            ),
        ),
        Scenario(
            "lessons",
            "Guess",
            changed(
                taught(**RESTARTS),
                {
                    "environment_parameters__worth__curriculum": [*lessons, {"name": "Last", "value": 2}],
                    "behaviors__Guess__max_steps": FOREVER,
                    "behaviors__Guess__checkpoint_interval": 1000,
                    "behaviors__Guess__summary_freq": 5000,
                },
            ),
            (TOLD_ENV,),
        ),
    ]


@dataclass
class Counts:
    """What has been done so far; shared by the workers."""

    kills: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By scenario and victim."""
    moments: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By moment and victim."""
    resumes: int = 0
    checkpoints: int = 0
    """Whole checkpoints that were read, part by part."""
    violations: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def to_plain(self) -> dict[str, object]:
        """Return what `--json` writes."""
        return {
            "kills": {f"{scenario}/{victim}": n for (scenario, victim), n in sorted(self.kills.items())},
            "moments": {f"{moment}/{victim}": n for (moment, victim), n in sorted(self.moments.items())},
            "total": self.kills.total(),
            "resumes": self.resumes,
            "checkpoints": self.checkpoints,
            "violations": self.violations,
        }


class Chain:
    """One run folder, started, killed and resumed, many times.

    Args:
        scenario: the run.
        folder: of this chain.
        chance: decides on victims and moments.
        counts: what is counted.
    """

    def __init__(self, scenario: Scenario, folder: Path, chance: random.Random, counts: Counts) -> None:
        self._scenario = scenario
        self._folder = folder
        self._chance = chance
        self._counts = counts
        self._standing: Standing | None = None
        self._story: list[str] = []

    @property
    def story(self) -> str:
        """What has been done to it."""
        return "; ".join(self._story)

    def run(self, lives: int) -> None:
        """Start it so many times, kill it each time, and end it in order the last time."""
        for life in range(lives):
            self._live(last=life == lives - 1)

    def _live(self, last: bool) -> None:
        run_folder = self._folder / "results" / "run"
        resume = run_folder.is_dir()
        self._story.append("resume" if resume else "start")
        command = Command(
            self._folder, self._scenario.plain, *(["--resume"] if resume else []), beside=self._scenario.beside
        )
        try:
            for _ in range(self._chance.choice([0, 0, 1, 2, 4, 6])):
                self._kill_host(command, self._chance.choice(["actor", "learner"]))
            if last:
                self._end(command)
            else:
                self._kill_main(command)
            self._look(command, resume)
        finally:
            command.end()

    def _kill_host(self, command: Command, victim: str) -> None:
        name = "actor-0" if victim == "actor" else f"learner-{self._scenario.behavior}"
        pid = command.pid_of(name)
        moment = self._wait(command, victim, pid)
        told = f"The process of {name} was killed by signal 9. Starting it again"
        before, newest = command.output.count(told), number_of(command)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            raise Violation(f"the process of {name} has ended by itself") from None
        self._count(victim, moment)
        command.until(lambda: command.output.count(told) > before, f"a word of the end of {name}")
        command.until(lambda: command.hosts().get(name, pid) != pid, f"the replacement of {name}")
        if self._chance.random() < 0.5:
            number = number_of(command)
            command.until(lambda: number_of(command) >= number + 2, f"checkpoints after the end of {name}")
        require(number_of(command) >= newest, f"checkpoint {newest} is gone after the end of {name}")

    def _kill_main(self, command: Command) -> None:
        moment = self._wait(command, "main", command.process.pid)
        if command.process.poll() is not None:
            raise Violation(f"the run ended by itself with status {command.process.returncode}")
        before = Progress.of(command.run_folder)
        command.process.kill()
        self._count("main", moment)
        status = command.wait()
        require(status == -signal.SIGKILL, f"the exit status is {status}")
        after = Progress.of(command.run_folder)
        require(after >= before, f"the newest checkpoint went back from {before} to {after}")

    def _end(self, command: Command) -> None:
        """Let it make some checkpoints, then Ctrl-C."""
        number = number_of(command)
        command.until(lambda: number_of(command) >= number + 2, "checkpoints before the end")
        command.interrupt()
        status = command.wait()
        require(status == 0, f"the exit status after Ctrl-C is {status}")
        self._story.append("Ctrl-C")

    def _look(self, command: Command, resumed: bool) -> None:
        """What is left, and what stands, now that everything has ended."""
        command.until_gone()
        require("Traceback" not in command.output, "there is a raw traceback")
        require("could not be restored" not in command.output, "the replay memory was lost")
        if command.process.returncode != -signal.SIGKILL:
            command.assert_left_nothing()
        earlier = self._standing
        if resumed and earlier is not None and "Resuming" in command.output:
            told = f"Resuming training from step {earlier.step}."
            require(told in command.output, f"expected {told!r}")
        went_on_from = [int(step) for step in re.findall(r"goes on from step (\d+)", command.output)]
        if "goes on from the start" in command.output:
            went_on_from.append(0)
        self._standing = Standing.of(command.run_folder, self._scenario.behavior, earlier, went_on_from)
        if earlier is not None:
            require(self._standing is not None, "the checkpoint is gone")
        with self._counts.lock:
            self._counts.resumes += resumed
            self._counts.checkpoints += self._standing is not None

    def _wait(self, command: Command, victim: str, pid: int) -> str:
        """Wait for a moment of chance; returns its kind."""
        moment = self._chance.choice(MOMENTS)
        if moment == MOMENTS[0] and age_s(pid) > 0.1:
            moment = self._chance.choice(MOMENTS[1:])
        checkpoints = command.run_folder / "checkpoints"
        number = number_of(command)
        match moment:
            case "first 100 ms":
                time.sleep(self._chance.uniform(0, max(0.0, 0.1 - age_s(pid))))
            case "start":
                time.sleep(self._chance.uniform(0, 5))
            case "training":
                command.until(lambda: number_of(command) > number, "a checkpoint")
                time.sleep(self._chance.uniform(0, 1))
            case "a checkpoint begins":
                names = names_in(checkpoints)
                watch(command, lambda: bool(names_in(checkpoints) - names), "the folder of a checkpoint")
                time.sleep(self._chance.uniform(0, 0.04))
            case _:
                watch(command, lambda: number_of(command) > number, "a manifest")
                time.sleep(self._chance.uniform(0, 0.01))
        self._story.append(f"kill {victim}, {moment}")
        return moment

    def _count(self, victim: str, moment: str) -> None:
        with self._counts.lock:
            self._counts.kills[self._scenario.name, victim] += 1
            self._counts.moments[moment, victim] += 1


def number_of(command: Command) -> int:
    """Return the number of the newest whole checkpoint, -1 if there is none."""
    return max(numbered_folders(command.run_folder / "checkpoints"), default=-1)


def names_in(folder: Path) -> set[str]:
    """Return the names in a folder, none if it is not there."""
    try:
        return set(os.listdir(folder))
    except FileNotFoundError:
        return set()


def watch(command: Command, condition: Callable[[], bool], what: str) -> None:
    """Wait as `Command.until` does, for what lasts only milliseconds.

    Raises:
        Violation: if the command ends, or nothing comes.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        require(command.process.poll() is None, f"the run ended with {command.process.returncode} before {what}")
        require(time.monotonic() < deadline, f"no {what} within {PATIENCE_S:.0f} s")
        time.sleep(0.001)


def age_s(pid: int) -> float:
    """Return the seconds since a process was started; infinite once it has ended."""
    try:
        started = int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    except (OSError, IndexError):
        return math.inf
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")


def work(worker: int, args: argparse.Namespace, counts: Counts, deadline: float) -> None:
    """Run chains until there have been enough kills, or the time is over."""
    runs = scenarios()
    for number in itertools.count(worker, args.workers):
        if counts.kills.total() >= args.times or time.monotonic() > deadline:
            return
        scenario = runs[number % len(runs)]
        name = f"{scenario.name}, seed {args.seed}:{number}".replace(" ", "-")
        folder = args.folder / name.replace(",", "").replace(":", "-")
        chance = random.Random(f"{args.seed}:{number}")
        chain = Chain(scenario, folder, chance, counts)
        try:
            chain.run(chance.randint(2, LIVES))
        except (Violation, pytest.fail.Exception) as error:
            with counts.lock:
                counts.violations.append(f"{name}: {error}\n  after: {chain.story}\n  in: {folder}")
            print(counts.violations[-1], flush=True)
        else:
            shutil.rmtree(folder)
        with counts.lock:
            kills, violations = counts.kills.total(), len(counts.violations)
            print(f"{time.strftime('%H:%M:%S')} {name}: {kills} kills in all, {violations} violations", flush=True)
            if args.json is not None:
                args.json.write_text(json.dumps(counts.to_plain(), indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=100, help="kills in all")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no run after so many")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--workers", type=int, default=2, help="runs at a time")
    parser.add_argument("--folder", type=Path, default=None, help="of the runs; those with a violation stay there")
    parser.add_argument("--json", type=Path, default=None, help="file for the counts")
    args = parser.parse_args()
    args.folder = (args.folder or Path(tempfile.mkdtemp(prefix="kill-"))).absolute()
    os.environ["PYTHONPATH"] = str(COMMAND.parents[1])
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(f"seed {args.seed}, runs in {args.folder}", flush=True)
    counts = Counts()
    began = time.monotonic()
    with ThreadPoolExecutor(args.workers) as pool:
        for done in [
            pool.submit(work, worker, args, counts, began + 60 * args.minutes) for worker in range(args.workers)
        ]:
            done.result()
    print(table(counts))
    print(f"{(time.monotonic() - began) / 60:.1f} minutes")
    raise SystemExit(bool(counts.violations))


def table(counts: Counts) -> str:
    """Return the kills by victim and scenario, and by victim and moment, in Markdown."""
    lines = ["| kill -9 of | " + " | ".join(VICTIMS) + " | all |", "|---" * (len(VICTIMS) + 2) + "|"]
    for title, names, found in (
        ("", [scenario.name for scenario in scenarios()], counts.kills),
        ("moment: ", MOMENTS, counts.moments),
    ):
        for name in names:
            row = [found[name, victim] for victim in VICTIMS]
            lines.append(f"| {title}{name} | " + " | ".join(map(str, [*row, sum(row)])) + " |")
    lines.append(
        f"\n{counts.kills.total()} kills, {counts.resumes} resumes, {counts.checkpoints} checkpoints read whole, "
        f"{len(counts.violations)} violations"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
