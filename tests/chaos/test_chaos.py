"""Faults × places × moments: a run names the fault, ends, saves what it can and leaves no process behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from chaos_table import (
    ASKED,
    IN_MAIN,
    OF_RAY,
    REPLACED,
    Cell,
    cells,
    diagonal,
    is_silent,
    loses_main,
    saves_what_was_learned,
    statuses,
)
from run_configs import Plain, cartpole
from runs import Command

from headrace.config.host_kinds import HOST_KINDS
from headrace.pipeline.run_folder.checkpoint import newest_checkpoint

BESIDE = [Path(__file__).with_name(name) for name in ("misbehaving.py", "misbehaving_trainer.py", "game.py")]
BESIDE += [Path(__file__).parents[1] / "foreign_env.py"]
LAST_STEP = 2000
"""`max_steps` of the run."""
BOUND_S = 180.0
"""A cell takes some ten seconds; a slow machine is no failure."""
SILENCE = {"process": {"warn_s": 2, "end_s": 6}, "ray": {"warn_s": 6, "end_s": 18}}
"""By kind of hosts: Ray's own processes want a share of the machine."""
GRACE_S = {"process": 16, "ray": 60}
"""A sixth of it is what an actor has to come to its end, and to the fault there."""


@dataclass(frozen=True)
class Outcome:
    """What came of a cell."""

    status: int | None
    """The exit status; None if it did not end within `BOUND_S`."""
    happened: int | None
    """Number of the newest checkpoint when the fault happened; None if it did not happen."""
    number: int
    """Number of the newest checkpoint in the end, -1 if there is none."""
    step: int
    """The trainer's step in it."""
    left: list[int]
    """Processes that stayed behind."""
    output: str


def configuration(cell: Cell, kind: str = "process") -> Plain:
    """A run of some seconds with a stage of each kind, in hosts of a kind."""
    silence = SILENCE[kind]
    own_trainer = cell.place == "trainer" or cell.moment == "checkpoint"  # to look it up, actors import torch
    plain = cartpole(
        environment__factory="misbehaving:Env",
        environment__num_envs=2,
        env_settings__restarts_rate_limit_n=1 if cell.moment == "mid-run" else 0,
        behaviors__CartPole__trainer_type="misbehaving_trainer:Learns" if own_trainer else "ppo",
        behaviors__CartPole__max_steps=LAST_STEP,
        behaviors__CartPole__time_horizon=16,
        behaviors__CartPole__summary_freq=500,
        behaviors__CartPole__checkpoint_interval=500,
        behaviors__CartPole__hyperparameters__buffer_size=250,
        behaviors__CartPole__hyperparameters__batch_size=125,
        pipeline__hosts={"actors": {"kind": kind}, "learners": {"kind": kind}},
        pipeline__stages=[{"use": "misbehaving:ActorStage"}, {"use": "misbehaving:MainStage", "host": "main"}],
        pipeline__statistics_writers=[{"use": "misbehaving:Writer"}],
        pipeline__supervision={
            "actors": silence,
            "learners": silence,
            "main": silence,
            "grace_s": GRACE_S[kind],
        },
    )
    del plain["environment"]["id"]
    return plain


def observe(cell: Cell, folder: Path, kind: str = "process") -> Outcome:
    """Run a cell in a folder of its own, in hosts of a kind."""
    command = Command(
        folder,
        configuration(cell, kind),
        beside=BESIDE,
        environment={"CHAOS": str(cell), "CHAOS_STEPS": str(LAST_STEP)},
        terminal=cell.fault == "terminal closed",
    )
    try:
        for name, process in (("main", command.process), ("terminal", command.terminal)):
            if process is not None:
                (folder / "part").write_text(str(process.pid), encoding="utf-8")
                (folder / "part").rename(folder / name)
        if cell.fault == "SIGSTOP" and cell.place in IN_MAIN:
            _wake(command)
        status = _wait(command)
        folders = [command.run_folder, *(command.results / name for name in ("run-rescued", "moved"))]
        found = [newest for folder in folders if (newest := newest_checkpoint(folder / "checkpoints")) is not None]
        checkpoint = max(found, key=lambda each: each.number, default=None)
        happened = folder / "happened"
        return Outcome(
            status,
            int(happened.read_text()) if happened.exists() else None,
            -1 if checkpoint is None else checkpoint.number,
            0 if checkpoint is None else checkpoint.read("trainer@learner-CartPole")["trainer"]["step"],
            _left(command),
            command.output,
        )
    finally:
        command.end()


def _wait(command: Command) -> int | None:
    try:
        return command.process.wait(BOUND_S)
    except subprocess.TimeoutExpired:
        return None


def _wake(command: Command) -> None:
    """Wait until main has stopped, as after Ctrl-Z, and let it continue."""
    stat = Path(f"/proc/{command.process.pid}/stat")
    while command.process.poll() is None:
        with contextlib.suppress(OSError):
            if stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T":
                os.kill(command.process.pid, signal.SIGCONT)
                return
        time.sleep(0.01)


def _left(command: Command) -> list[int]:
    deadline = time.monotonic() + 15.0
    while command.processes() and time.monotonic() < deadline:
        time.sleep(0.02)
    return command.processes()


BLAMED = {
    "environment": r"actor-0|stage actor|the environment's|environment factory",
    "game": r"actor-0|stage actor|the environment's|environment factory",
    "ActorStage": r"ActorStage|actor-0",
    "MainStage": r"MainStage",
    "trainer": r"stage trainer|learner-CartPole|misbehaving_trainer:Learns|policy version",
    "publisher": r"publisher|policy version",
    "writer": r"misbehaving:Writer",
    **dict.fromkeys(OF_RAY, r"Ray|actor-0|learner-CartPole"),
}
"""What the message names."""


def parameters():
    """Cells by the kind of hosts; all that are not quick are slow."""
    quick = diagonal()
    for kind in SILENCE:
        for cell in cells(kind):
            marks = () if cell in quick and kind == "process" else pytest.mark.slow
            yield pytest.param(kind, cell, id=f"{kind}|{cell}", marks=marks)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "cell"), [*parameters()])
def test_a_fault_is_named_and_leaves_no_process_and_no_damage(kind: str, cell: Cell, tmp_path):
    if HOST_KINDS[kind].on_ray and find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    check(kind, cell, observe(cell, tmp_path, kind))


def check(kind: str, cell: Cell, found: Outcome) -> None:
    """It ends as the table says, and says why."""
    print(found.output)
    assert found.status is not None, f"it did not end within {BOUND_S} s"
    assert found.happened is not None, "the fault has not happened"
    assert found.status in statuses(cell, kind)
    assert found.left == [], "processes stayed behind"
    assert_told(cell, found)
    assert found.number >= found.happened, "a checkpoint is lost"
    if cell.fault in ASKED:
        assert found.number > found.happened or cell.moment not in ("mid-run", "checkpoint"), "nothing was saved"
    elif found.status == 0 and not loses_main(cell):
        assert found.step >= LAST_STEP
    if found.status == 1 and found.happened >= 0 and saves_what_was_learned(cell) and found.step < LAST_STEP:
        assert found.number > found.happened, "what was learned is not saved"


def assert_told(cell: Cell, found: Outcome) -> None:
    """It is said who is to blame, once, and as people read it."""
    others = {"NaN output": r"not finite|\bnan\b", REPLACED: "no longer the folder that this run has locked"}
    blamed = others.get(cell.fault, BLAMED[cell.place])
    if cell.place != "game":  # whose own words are its own
        assert "Traceback (most" not in found.output  # the word alone may come from a stack that a warning shows
    if found.status == 1:
        (told,) = re.findall("the run has failed: (.*)", found.output)
        assert re.search(blamed, told), told
    if not is_silent(cell):
        told = "\n".join(re.findall(r"(?:\[WARNING\]|\[ERROR\]|run-pipeline:).*", found.output))
        assert re.search(blamed, told), "nobody is blamed"
