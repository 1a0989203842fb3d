"""An environment, stages, a publisher and a writer, one of which does what it should not; they lie beside the YAML.

`CHAOS` in the environment says which one, when and what: `place|moment|fault`, names of `chaos_table.py`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
from foreign_env import change_all  # beside the YAML

from headrace.pipeline.run_folder.checkpoint import newest_checkpoint
from headrace.queues.messages import PolicyUpdate
from headrace.stages import Stage, TrajectoryBatch
from headrace.stages.publisher import PolicyPublisher

PLACE, MOMENT, FAULT = os.environ.get("CHAOS", "nowhere|never|nothing").split("|")
HERE = Path.cwd()
CHECKPOINTS = HERE / "results/run/checkpoints"
LAST_STEP = int(os.environ.get("CHAOS_STEPS", "0"))
"""`max_steps` of the run."""
SAVING = HERE / "saving"
"""Is there while the trainer saves its part of a checkpoint."""
HAPPENED = HERE / "happened"
"""Is there once the fault has happened; says the number of the newest checkpoint then, and the trainer's step."""
ONCE = MOMENT == "mid-run" or FAULT in (
    *("slow", "SIGSTOP", "folder replaced", "terminal closed", "two signals", "process changed"),
)
"""The fault happens once, and not again in a replacement; other faults come again each time."""
SLOW_S = 3.0
OF_RAY = ("raylet", "gcs_server")
"""Places that are processes of Ray; the stage in main strikes them."""
RAISED: dict[str, BaseException] = {
    "raise": RuntimeError("the motor is on fire"),
    "sys.exit(0)": SystemExit(0),
    "SystemExit": SystemExit("the motor is off"),
    "KeyboardInterrupt": KeyboardInterrupt(),
    "CancelledError": asyncio.CancelledError(),
    "GeneratorExit": GeneratorExit(),
}


def newest() -> int:
    """The number of the newest whole checkpoint, -1 if there is none."""
    checkpoint = newest_checkpoint(CHECKPOINTS)
    return -1 if checkpoint is None else checkpoint.number


class Fault:
    """What happens in one place.

    Args:
        place: where it is.
        seldom: look for a checkpoint at each so many items.
    """

    def __init__(self, place: str, seldom: int = 1) -> None:
        self._here = place == PLACE
        self._seldom = seldom
        self._calls = 0

    def due(self, moment: str) -> str:
        """Whether it happens now: the fault's name, else an empty text.

        Args:
            moment: `start`, `checkpoint` or `end`; `item` for each item, which may be the first one or any later one.
        """
        if not self._here or (ONCE and HAPPENED.exists()):
            return ""
        self._calls += moment == "item"
        if MOMENT not in (self._moments() if moment == "item" else [moment]):
            return ""
        HAPPENED.write_text(str(newest()), encoding="utf-8")
        return FAULT

    def strike(self, moment: str) -> str:
        """As `due`, and most faults happen here; the name of one that the caller has to see to, else an empty text."""
        return commit(self.due(moment))

    def _moments(self) -> Iterator[str]:
        if self._calls == 1:
            yield "first item"
        if MOMENT == "mid-run" and self._calls % self._seldom == 0 and newest() >= 0:
            yield "mid-run"
        if SAVING.exists():
            yield "checkpoint"


def commit(fault: str) -> str:
    """Do what a fault's name says; returns the name if its place has to do it, else an empty text."""
    if fault in RAISED:
        raise RAISED[fault]
    match fault:
        case "os._exit(0)":
            os._exit(0)
        case "os._exit(3)":
            os._exit(3)
        case "kill -9":
            os.kill(victim(), signal.SIGKILL)
        case "SIGSTOP":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "hang in Python":
            while True:
                pass
        case "hang in C":
            time.sleep(10**6)
        case "slow":
            time.sleep(SLOW_S)
        case "folder replaced":
            run_folder = CHECKPOINTS.parent
            run_folder.rename(run_folder.with_name("moved"))
            run_folder.mkdir()
        case "process changed":
            # Tracebacks of the first are no fault of ours; what comes this very second needs the others.
            change_all({"fork that raises", "atexit", "warnings", "torch"})
        case "terminal closed":
            os.kill(pid_in("terminal"), signal.SIGKILL)
        case "two signals":
            for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
                os.kill(pid_in("main"), number)
                time.sleep(0.02)  # else the system makes one of them
        case _:
            return fault
    return ""


def pid_in(name: str) -> int:
    """The process id in a file that whoever has started the run writes."""
    while not (file := Path(name)).exists():
        time.sleep(0.01)
    return int(file.read_text(encoding="utf-8"))


def victim() -> int:
    """The process that a fault is to end: this one, or the one of Ray that is the place."""
    if PLACE not in OF_RAY:
        return os.getpid()
    (found,) = (child.pid for child in psutil.Process().children(recursive=True) if child.name() == PLACE)
    return found


class Game:
    """The program that an environment starts: `game.py`, which answers each line with a reward."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("game.py"))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, fault: str) -> float:
        """Its answer."""
        pipes = self._process.stdin, self._process.stdout
        assert pipes[0] is not None
        assert pipes[1] is not None
        pipes[0].write(f"{fault}\n")
        pipes[0].flush()
        answer = pipes[1].readline()
        if not answer:
            raise RuntimeError(f"the game has ended with status {self._process.wait()}")
        return float(answer)

    def close(self) -> None:
        """End it as many environments do."""
        self._process.terminate()
        self._process.wait()


class Env(gymnasium.Env[Any, Any]):
    """Ten steps of nothing per episode."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._steps = 0
        self._fault, self._fault_of_game = Fault("environment", 20), Fault("game", 20)
        self._game = Game() if PLACE == "game" else None
        self._spoilt = self._fault.strike("start")
        self._ask("start")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        self._spoilt = self._fault.strike("item")
        reward = self._ask("item")
        return self._observation(), reward, self._steps % 10 == 0, False, {}

    def close(self) -> None:
        self._fault.strike("end")
        self._ask("end")
        if self._game is not None:
            self._game.close()

    def _ask(self, moment: str) -> float:
        if self._game is not None:
            return self._game.ask(self._fault_of_game.due(moment))
        return float("nan") if self._spoilt == "NaN output" else 1.0

    def _observation(self) -> Any:
        size = 5 if self._spoilt == "wrong output" else 3
        return self.np_random.uniform(-1, 1, size).astype(np.float32)


class _Misbehaves(Stage[TrajectoryBatch, TrajectoryBatch]):
    """Passes batches on."""

    def __init__(self) -> None:
        place = type(self).__name__
        self._fault = Fault(PLACE if place == "MainStage" and PLACE in OF_RAY else place)

    async def start(self, context: Any) -> None:
        super().start(context)
        await self._strike("start")

    async def process(self, batch: TrajectoryBatch) -> AsyncIterator[TrajectoryBatch]:
        spoilt = await self._strike("item")
        yield self._spoil(batch, spoilt)

    async def finish(self) -> AsyncIterator[TrajectoryBatch]:
        spoilt = await self._strike("end")
        if spoilt == "wrong output":
            yield self._spoil(None, spoilt)

    def state_dict(self) -> Mapping[str, Any]:
        return {"state": {1, 2} if self._fault.strike("checkpoint") == "wrong output" else 0}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        return None

    async def _strike(self, moment: str) -> str:
        fault = self._fault.strike(moment)
        if fault == "await for ever":
            await asyncio.Event().wait()
        return fault

    def _spoil(self, batch: Any, spoilt: str) -> Any:
        match spoilt:
            case "wrong output":
                return "not a batch"
            case "NaN output":
                return batch.replace(rewards=np.full_like(batch.rewards, np.nan))
        return batch


class ActorStage(_Misbehaves):
    """In an actor host."""


class MainStage(_Misbehaves):
    """In main."""


def spoil(policy: PolicyUpdate, fault: str) -> PolicyUpdate:
    """A policy that is not one, or the policy."""
    match fault:
        case "NaN output":
            weights = np.full_like(policy.weights, np.nan)
        case "wrong output":
            weights = policy.weights[:-1]
        case _:
            return policy
    return PolicyUpdate(policy.behavior_id, policy.version, weights, policy.layout, policy.step)


class Writer:
    """A statistics writer. With the publisher's turn, it puts the fault into the publisher, which no YAML names."""

    def __init__(self, run_folder: Path) -> None:
        self._fault = Fault("writer")
        self._fault.strike("start")
        if PLACE == "publisher":
            sabotage_publisher()

    def write(self, category: str, summaries: Mapping[str, Any], step: int) -> None:
        self._fault.strike("item")

    def add_property(self, category: str, name: str, value: object) -> None:
        """Not needed."""

    def close(self) -> None:
        self._fault.strike("end")


def sabotage_publisher() -> None:
    """Let the publisher misbehave."""
    sound, fault = PolicyPublisher.process, Fault("publisher")

    def process(self: PolicyPublisher, item: PolicyUpdate) -> Iterator[None]:
        last = item.step > LAST_STEP - 500  # the very last one may find main at its end already
        spoilt = fault.strike("end" if last else "item")
        yield from sound(self, spoil(item, spoilt))

    PolicyPublisher.process = process  # type: ignore[method-assign]
