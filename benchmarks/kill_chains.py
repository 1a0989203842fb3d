"""One run folder or command that `kill.py` starts and kills many times, and the checks after each kill."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from kill_scenarios import NODE, SWEEPER, Scenario
from page_calls import Page
from run_configs import with_expert
from runs import MORE_PATIENCE_S, PATIENCE_S, Command
from serving_samples import write_model
from standing import Progress, Standing, Violation, require

from headrace.pipeline.run_folder.checkpoint import numbered_folders

WITHOUT_NODE_S = 20.0
"""Seconds within which a run must end after Ray's node is killed."""
MOMENTS = ("first 100 ms", "start", "training", "a checkpoint begins", "a checkpoint ends")


@dataclass
class Counts:
    """Counts so far, shared by the workers."""

    kills: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of kills by scenario and victim."""
    moments: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of kills by moment and victim."""
    resumes: int = 0
    checkpoints: int = 0
    """Number of complete checkpoints that were read, part by part."""
    games: int = 0
    """Number of games that leagues have counted, none of them twice."""
    chains: int = 0
    """Number of chains started so far; also the number of the next chain."""
    violations: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Chain:
    """A run folder in which a run is started, killed and resumed many times.

    Args:
        scenario: the run.
        folder: the chain's folder.
        chance: random numbers for choosing victims and moments.
        counts: the counts, shared by all chains.
        expert: path of the stream of demonstrations.
    """

    def __init__(self, scenario: Scenario, folder: Path, chance: random.Random, counts: Counts, expert: str) -> None:
        self._scenario = scenario
        self._plain = with_expert(scenario.plain, expert)
        self._folder = folder
        self._chance = chance
        self._counts = counts
        self._standing: dict[str, Standing | None] = dict.fromkeys(scenario.behaviors)
        self._story: list[str] = []

    @property
    def story(self) -> str:
        """Text that describes what was done to the run so far."""
        return "; ".join(self._story)

    def run(self, lives: int) -> None:
        """Start the run this many times, kill it each time, and end it cleanly the last time."""
        for life in range(lives):
            self._live(last=life == lives - 1)

    def _start(self, *arguments: str) -> Command:
        arguments = (*self._scenario.arguments, *arguments)
        beside, patience_s = self._scenario.beside, MORE_PATIENCE_S
        return Command(self._folder, self._plain, *arguments, beside=beside, patience_s=patience_s)

    def _live(self, last: bool) -> None:
        resume = (self._folder / "results" / "run").is_dir()
        self._story.append("resume" if resume else "start")
        tally = self._tally()
        command = self._start(*(["--resume"] if resume else []))
        try:
            if self._scenario.viewed:
                threading.Thread(target=look_at, args=(command, self._chance.random() < 0.5), daemon=True).start()
            for _ in range(self._chance.choice([0, 0, 1, 2, 4, 6])):
                self._kill_host(command)
            fatal = [*self._scenario.fatal]
            if last:
                self._end(command)
            elif fatal and self._chance.random() < 0.5:
                self._kill_fatal(command, self._chance.choice(fatal))
            else:
                self._kill_main(command)
            before = self._league_games()
            self._look(command, resume)
            self._audit(self._league_games() - before, self._tally() - tally)
        finally:
            command.end()

    def _tally(self) -> int:
        """Return the number of games that a league's environments have finished; they write a byte for each."""
        return sum(path.stat().st_size for path in self._folder.glob("*.games"))

    def _league_games(self) -> int:
        """Return the number of games in the league's newest checkpoint."""
        standing = next(iter(self._standing.values()))
        return 0 if standing is None else sum(standing.met.values())

    def _audit(self, counted: int, finished: int) -> None:
        """Check that the league has counted no game twice since the last start."""
        require(counted <= finished, f"{finished} games were finished, but {counted} were counted")
        with self._counts.lock:
            self._counts.games += counted

    def _kill_host(self, command: Command) -> None:
        """Kill a host that the run replaces, and check the replacement."""
        victim = self._chance.choice([*self._scenario.victims])
        name = self._scenario.victims[victim]
        pid = sweeper_of(command) if name == SWEEPER else self._pid_of(command, name)
        if pid is None:  # the sweeper was killed, and comes back with the next host
            return
        moment = self._wait(command, victim, pid)
        before, newest = said_of(command, name), number_of(command)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            raise Violation(f"the process of {name} has ended by itself") from None
        self._count(victim, moment)
        if name != SWEEPER:
            command.until(lambda: said_of(command, name) > before, f"a word of the end of {name}")
            command.until(lambda: self._found(command).get(name, pid) != pid, f"the replacement of {name}")
        if self._chance.random() < 0.5:
            number = number_of(command)
            command.until(lambda: number_of(command) >= number + 2, f"checkpoints after the end of {name}")
        require(number_of(command) >= newest, f"checkpoint {newest} is gone after the end of {name}")

    def _kill_fatal(self, command: Command, victim: str) -> None:
        """Kill a host without which the run must end."""
        name = self._scenario.fatal[victim]
        pid = self._pid_of(command, name)
        moment = self._wait(command, victim, pid)
        began = Progress.of(command.run_folder)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self._count(victim, moment)
        deadline = time.monotonic() + (WITHOUT_NODE_S if name == NODE else PATIENCE_S)
        while command.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        if name == NODE and command.process.poll() is None:  # hosts that are connected may continue without it
            self._strike_main(command, "training")
            return
        require(command.process.poll() is not None, f"the run continues without {name}")
        require(command.wait() == 1, f"the exit status is {command.process.returncode} after the end of {name}")
        require("the run has failed: " in command.output, f"the end of {name} is not named")
        require(Progress.of(command.run_folder) >= began, "the newest checkpoint went back")

    def _kill_main(self, command: Command) -> None:
        moment = self._wait(command, "main", command.process.pid)
        if command.process.poll() is not None:
            raise Violation(f"the run ended by itself with status {command.process.returncode}")
        self._strike_main(command, moment)

    def _strike_main(self, command: Command, moment: str) -> None:
        before = Progress.of(command.run_folder)
        if self._chance.random() < 0.25 and not self._scenario.on_ray:
            self._kill_sweeper(command)
        command.process.kill()
        self._count("main", moment)
        status = command.wait()
        require(status == -signal.SIGKILL, f"the exit status is {status}")
        after = Progress.of(command.run_folder)
        require(after >= before, f"the newest checkpoint went back from {before} to {after}")

    def _kill_sweeper(self, command: Command) -> None:
        pid = sweeper_of(command)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self._story.append("kill the sweeper just before")

    def _end(self, command: Command) -> None:
        """Let the run write a few checkpoints, then end it with Ctrl-C."""
        number = number_of(command)
        command.until(lambda: number_of(command) >= number + 2, "checkpoints before the end")
        command.interrupt()
        status = command.wait()
        require(status == 0, f"the exit status after Ctrl-C is {status}")
        self._story.append("Ctrl-C")

    def _look(self, command: Command, resumed: bool) -> None:
        """Check what the ended processes have left behind, and the run's progress."""
        command.until_gone()
        require("Traceback" not in command.output, "there is a raw traceback")
        require("could not be restored" not in command.output, "the replay memory was lost")
        require(not [*Path("/tmp").glob(f"headrace-ray-{command.process.pid}-*")], "the folder of Ray is left")
        if command.process.returncode != -signal.SIGKILL:
            command.assert_left_nothing()
        for behavior, earlier in self._standing.items():
            if resumed and earlier is not None and "Resuming" in command.output:
                told = f"{'Resuming' if earlier.step else 'Starting'} training from step {earlier.step}"
                require(told in command.output, f"expected {told!r}")
            learner = rf"learner-{re.escape(behavior)} continues from"
            went_on_from = [int(step) for step in re.findall(rf"{learner} step (\d+)", command.output)]
            if re.search(rf"{learner} the start", command.output):
                went_on_from.append(0)
            now = Standing.of(command.run_folder, behavior, earlier, went_on_from)
            require(now is not None or earlier is None, "the checkpoint is gone")
            self._standing[behavior] = now
        with self._counts.lock:
            self._counts.resumes += resumed
            self._counts.checkpoints += all(each is not None for each in self._standing.values())

    def _found(self, command: Command) -> dict[str, int]:
        """Return the process ids of possible victims, by name."""
        if not self._scenario.on_ray:
            return {**command.hosts(), SWEEPER: sweeper_of(command) or 0}
        said = re.findall(r"(\S+) runs in process (\d+)", command.output)
        return {**{name: int(pid) for name, pid in said}, **dict.fromkeys([NODE], named(command, "raylet"))}

    def _pid_of(self, command: Command, name: str) -> int:
        command.until(lambda: bool(self._found(command).get(name)), f"the process of {name}")
        return self._found(command)[name]

    def _wait(self, command: Command, victim: str, pid: int) -> str:
        """Wait for a random moment; return its kind."""
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


class CommandChain(Chain):
    """A command other than a run, started and killed many times: it must leave nothing behind and change no input."""

    def _live(self, last: bool) -> None:
        model = self._folder / "model"
        if self._scenario.command == "serve" and not model.is_dir():
            write_model(model)
        before = digest(model)
        self._story.append("start")
        serves = ("--serve", str(model), "--listen", "127.0.0.1:0") if self._scenario.command == "serve" else ()
        command = self._start(*serves)
        try:
            moment = self._chance.choice(MOMENTS[:3])
            if moment == MOMENTS[2] and serves:
                command.until(lambda: "Serving" in command.output, "its address")
            least = 0.5 if last else 0.0  # while Python itself starts, Python handles Ctrl-C
            time.sleep(self._chance.uniform(least, 0.1 if moment == MOMENTS[0] and not last else 4))
            self._story.append(f"{'Ctrl-C' if last else 'kill main'}, {moment}")
            self._strike(command, moment, last)
            command.until_gone()
            command.assert_left_nothing()
            require("Traceback" not in command.output, "there is a raw traceback")
            require(digest(model) == before, "the model was changed")
        finally:
            command.end()

    def _strike(self, command: Command, moment: str, last: bool) -> None:
        ended = command.process.poll()
        if last:
            command.interrupt()
            command.wait()
            require(command.process.returncode in (0, 130), f"the exit status is {command.process.returncode}")
        elif ended is None:
            command.process.kill()
            self._count("main", moment)
            command.wait()
        else:
            require(ended == 0, f"it ended by itself with status {ended}: {command.output}")


def said_of(command: Command, name: str) -> int:
    """Return how often the output reports that a host is started again, because it or its learner ended."""
    words = rf"The process of (?:{re.escape(name)} |\S+ was ended, because {re.escape(name)} ).*Restarting it"
    return len(re.findall(words, command.output))


def sweeper_of(command: Command) -> int | None:
    """Return the process id of main's sweeper; None if there is none."""
    for child in _children(command):
        with contextlib.suppress(psutil.Error):
            if any(word.endswith("sweeper.py") for word in child.cmdline()):
                return child.pid
    return None


def named(command: Command, name: str) -> int:
    """Return the process id of a program that main has started; 0 if there is none."""
    for child in _children(command):
        with contextlib.suppress(psutil.Error):
            if child.name() == name:
                return child.pid
    return 0


def _children(command: Command) -> list[psutil.Process]:
    try:
        return psutil.Process(command.process.pid).children(recursive=True)
    except psutil.Error:
        return []


def look_at(command: Command, leaves: bool) -> None:
    """Look at a run's page until it ends, or leave it after some events."""
    with contextlib.suppress(BaseException):  # the run is killed meanwhile
        for number, _ in enumerate(Page(command).stream()):
            if leaves and number > 5:
                return


def digest(folder: Path) -> str:
    """Return a digest of all files in a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(str(path).encode() + path.read_bytes() for path in files)).hexdigest()


def number_of(command: Command) -> int:
    """Return the number of the newest complete checkpoint; -1 if there is none."""
    return max(numbered_folders(command.run_folder / "checkpoints"), default=-1)


def names_in(folder: Path) -> set[str]:
    """Return the names in a folder; empty if the folder does not exist."""
    try:
        return set(os.listdir(folder))
    except FileNotFoundError:
        return set()


def watch(command: Command, condition: Callable[[], bool], what: str) -> None:
    """Wait like `Command.until`, for events that last only milliseconds.

    Raises:
        Violation: if the command ends first, or the condition does not become true in time.
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
