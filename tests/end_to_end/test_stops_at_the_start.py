"""A stop request ends the command in every phase before the first step, even if code of the user never returns there.

Before the hosts start, and where such code blocks main, it ends at once, with 128 + the signal; else the run ends in order.
"""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest
from run_configs import INLINE, cartpole, changed

from headrace.config import RunConfig
from headrace.pipeline.common.errors import RunFailed
from headrace.pipeline.run import run
from headrace.pipeline.run_folder.checkpoint import newest_checkpoint

BESIDE = [Path(__file__).with_name(f"{name}.py") for name in ("startled", "startled_trainer")]
MEASURED = {"environment__num_envs": "auto"}
TRAINER = {"behaviors__CartPole": {**cartpole()["behaviors"]["CartPole"], "trainer_type": "startled_trainer:Learns"}}
ONLY_NAMED = {"behaviors__CartPole": {"trainer_type": "startled:Nothing"}, "pipeline__hosts__actors__kind": "inline"}
"""A trainer whose module is imported to find out what kind of trainer it is."""
NETWORK = {"behaviors__CartPole": {"network_settings": {"network": "startled_trainer:Network"}}}
SOON = {"pipeline__supervision__grace_s": 3.0}
"""Hosts have half a second to end."""


def startled(**changes):
    """A run with the environment of `startled.py`; a brain plays it, because trainers take seconds to start."""
    plain = {
        "environment": {"kind": "gymnasium", "factory": "startled:Env", "num_envs": 2, "behavior": "CartPole"},
        "env_settings": {"timeout_wait": 3600},
        "behaviors": {"CartPole": {"brain": "random", "max_steps": 1000}},
    }
    return changed(plain, changes)


def phase(where, point, status, number=signal.SIGTERM, *, slow=False, **changes):
    """A point that a run comes to in a process, and the status with which a stop request ends the command there."""
    marks = [pytest.mark.slow] if slow else []
    return pytest.param(f"{where}|{point}|hang", number, status, changes, id=f"{where}: {point}", marks=marks)


PHASES = [
    phase("main", "import", 130, signal.SIGINT, environment__kind="added"),  # a plugin, as the YAML is read
    phase("probe", "environment", 143, **MEASURED),
    phase("probe", "step", 130, signal.SIGINT, slow=True, **MEASURED),
    phase("main", "import", 143, **MEASURED, **ONLY_NAMED),  # in a thread
    phase("main", "environment", 143, **INLINE),
    phase("actor", "reset", 0, signal.SIGINT, **SOON),
    phase("learner", "import of the trainer", 0, slow=True, **TRAINER),
    phase("learner", "network", 0, **NETWORK, **SOON),
]


@pytest.mark.parametrize(("where", "number", "status", "changes"), PHASES)
def test_a_stop_request_ends_the_command_if_user_code_hangs(start, tmp_path, where, number, status, changes):
    offer_a_plugin(tmp_path)
    environment = {"STARTLED": where, "PYTHONPATH": str(tmp_path)}
    command = start(startled(**changes), beside=BESIDE, environment=environment)
    command.until((tmp_path / "reached").exists, "something that hangs")
    command.interrupt(number)
    assert command.wait() == status, command.output
    assert "Traceback" not in command.output
    words = "Learning was interrupted." if status == 0 else r"run-pipeline: ended (immediately|with nothing to save), "
    assert re.search(words, command.output)
    assert newest_checkpoint(command.run_folder / "checkpoints") is None
    command.assert_left_nothing()


def offer_a_plugin(folder):
    """Make `startled` a plugin of an installed package, which a kind that no table has is looked up in."""
    package = folder / "startled-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: startled\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[headrace.plugins]\nstartled = startled\n")


@pytest.mark.slow
def test_a_second_ctrl_c_ends_a_run_whose_learner_hangs_at_the_start(start, tmp_path):
    command = start(startled(**NETWORK), beside=BESIDE, environment={"STARTLED": "learner|network|hang"})
    command.until((tmp_path / "reached").exists, "something that hangs")
    command.interrupt()
    command.until(lambda: "Learning was interrupted." in command.output, "the first signal's answer")
    command.interrupt_again()
    assert command.wait() == 130, command.output
    assert "ended immediately" in command.output
    command.assert_left_nothing()


@pytest.mark.slow
def test_a_resumed_run_that_is_stopped_as_its_checkpoint_is_loaded_keeps_that_checkpoint(start, tmp_path):
    plain = startled(**TRAINER)
    assert start(plain, beside=BESIDE).wait() == 0
    command = start(plain, "--resume", beside=BESIDE, environment={"STARTLED": "learner|checkpoint|hang"})
    before = newest_checkpoint(command.run_folder / "checkpoints")
    command.until((tmp_path / "reached").exists, "something that hangs")
    command.interrupt()
    assert command.wait() == 0, command.output
    after = newest_checkpoint(command.run_folder / "checkpoints")
    assert before is not None
    assert after is not None
    assert (after.number, after.steps) == (before.number, before.steps)
    command.assert_left_nothing()


# What is raised there. ------------------------------------------------------------------------------------------------


def test_an_interrupt_raised_by_a_trainers_module_fails_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "raising.py").write_text("raise KeyboardInterrupt")
    plain = cartpole(behaviors__CartPole__trainer_type="raising:Learns", **MEASURED, **INLINE)
    plain["checkpoint_settings"] = {"results_dir": str(tmp_path / "results"), "run_id": "run"}
    with pytest.raises(RunFailed, match=r"KeyboardInterrupt \(at .*raising.py:1"):
        run(RunConfig.from_plain(plain, tmp_path / "run.yaml"))
