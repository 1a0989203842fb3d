"""Runs one cell of the table with the real command, and says what came of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from chaos_table import IN_MAIN, Cell
from run_configs import Plain, cartpole
from runs import Command

from headrace.pipeline.run_folder.checkpoint import newest_checkpoint

BESIDE = [Path(__file__).parent / "chaos" / name for name in ("misbehaving.py", "misbehaving_trainer.py", "game.py")]
BESIDE += [Path(__file__).with_name("foreign_env.py")]
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
    seconds: float
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
    began = time.monotonic()
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
        seconds = time.monotonic() - began
        folders = [command.run_folder, *(command.results / name for name in ("run-rescued", "moved"))]
        found = [newest for folder in folders if (newest := newest_checkpoint(folder / "checkpoints")) is not None]
        checkpoint = max(found, key=lambda each: each.number, default=None)
        happened = folder / "happened"
        return Outcome(
            status,
            seconds,
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
