"""The last checkpoint: it needs a healthy learner and nobody else, and as long as it makes progress it has time."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_configs import INLINE, TROUBLED_ENV, Plain, cartpole, changed, troubled
from run_folders import read_whole_checkpoint
from runs import Command, run_here

from headrace.pipeline.policies.export import read_export
from headrace.stop_requests import REQUESTS

BESIDE = [TROUBLED_ENV, TROUBLED_ENV.with_name("misbehaving_trainers.py")]
LONG = {"behaviors__CartPole__max_steps": 10**7, "behaviors__CartPole__checkpoint_interval": 10**7}
"""A run that makes no checkpoint of its own accord."""


def slow(grace_s: float, **changes: Any) -> Plain:
    """CartPole with a trainer that takes its time, as its environment variables say."""
    return cartpole(
        behaviors__CartPole__trainer_type="misbehaving_trainers:SlowTrainer",
        pipeline__supervision__grace_s=grace_s,
        pipeline__hosts__actors__kind="inline",
        **changes,
    )


def assert_it_goes_on(command: Command, plain: Plain) -> None:
    """The run ended well with a checkpoint of its last step, and a resumed one learns on from there."""
    assert command.wait() == 0, command.output
    assert "Traceback" not in command.output
    assert "could not be written" not in command.output
    command.assert_left_nothing()
    step = read_whole_checkpoint(command.run_folder)["trainer@learner-CartPole"]["trainer"]["step"]
    assert step >= 1000
    assert (command.run_folder / "CartPole" / f"CartPole-{step}.pt").exists()
    assert (command.run_folder / "CartPole.onnx").exists()
    further = {**INLINE, "behaviors__CartPole__max_steps": step + 1000, "environment__options": {}}
    result = run_here(changed(plain, further), command.results, "run", resume=True)
    assert result.behaviors["CartPole"].step >= step + 1000


def test_the_last_checkpoint_is_written_after_repeated_signals_if_the_actor_dies(start):
    plain = cartpole(**LONG)
    command = start(plain)
    command.until(lambda: "Step: 1000." in command.output, "the first summary")
    for pid in command.hosts().values():  # a terminal or service manager may send it to everybody: it is for main
        assert os.getpgid(pid) != os.getpgid(command.process.pid)
        for number in REQUESTS:
            os.kill(pid, number)
    summaries = command.output.count("Step: ")
    command.until(lambda: command.output.count("Step: ") > summaries + 1, "further summaries")
    actor = command.pid_of("actor-0")
    os.kill(actor, signal.SIGSTOP)  # it will not get as far as its barrier
    command.interrupt(signal.SIGUSR1)
    command.until(lambda: "Received SIGUSR1, a request to end the run." in command.output, "the signal's name")
    for number in (signal.SIGXCPU, signal.SIGUSR2, signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        command.interrupt(number)
    command.until(lambda: "Learning was interrupted" in command.output, "the signal's answer")
    os.kill(actor, signal.SIGKILL)
    assert_it_goes_on(command, changed(plain, {"environment__options": {}}))
    assert "The process of actor-0 was killed by signal 9 as the run ended." in command.output


@pytest.mark.slow
def test_the_last_checkpoint_is_written_if_an_environment_hangs(start, tmp_path):
    plain = changed(troubled(trouble="hang", once=str(tmp_path / "hangs"), after=1000), LONG)
    plain = changed(plain, {"pipeline__supervision__grace_s": 12.0})
    command = start(plain, beside=BESIDE)
    command.until((tmp_path / "hangs").exists, "an environment that hangs")
    command.interrupt()
    assert_it_goes_on(command, plain)
    assert "actor-0 did not stop within 2 s: saving the last checkpoint without it." in command.output
    assert "actor-0 did not end within 2 s; killing it." in command.output


@pytest.mark.slow
def test_the_last_checkpoint_is_written_after_a_long_update(start):
    plain = slow(12.0, **LONG)
    command = start(plain, beside=BESIDE, environment={"UPDATE_S": "4"})
    command.until(Path(command.run_folder.parents[1], "updates").exists, "a long update")
    command.interrupt()
    assert_it_goes_on(command, plain)


@pytest.mark.slow
def test_the_last_checkpoint_has_time_as_long_as_its_file_grows(start):
    plain = slow(6.0, behaviors__CartPole__checkpoint_interval=10**7)
    command = start(plain, beside=BESIDE, environment={"DISK_S": "12"})
    assert_it_goes_on(command, plain)


def test_the_exported_policy_has_averaged_weights(tmp_path):
    regularization = {"averaged_share": 0.5}
    plain = cartpole(behaviors__CartPole__hyperparameters__regularization=regularization, **INLINE)
    run = run_here(plain, tmp_path, "run")
    export = read_export(run.behaviors["CartPole"].export)
    trainer = read_whole_checkpoint(run.folder)["trainer@learner-CartPole"]["trainer"]
    tensors = export.update.tensors()
    for name in ("action.weight", "action.bias"):
        np.testing.assert_array_equal(tensors[name], trainer["average"][name])
        np.testing.assert_array_equal(export.learner["weights"][name], trainer["weights"][name])
        assert not np.array_equal(tensors[name], trainer["weights"][name])
