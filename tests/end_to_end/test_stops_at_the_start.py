"""A stop request ends the command in every phase before the first step, even if code of the user never returns there.

Before the hosts start, and where such code blocks main, it ends at once, with status 130; else the run ends in order.
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
STAGE = {"pipeline__stages": [{"use": "startled:MainStage", "host": "main"}]}
WRITER = {"pipeline__statistics_writers": [{"use": "startled:Writer"}]}
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
    phase("probe", "import", 130, slow=True, **MEASURED),
    phase("probe", "environment", 130, **MEASURED),
    phase("probe", "spaces", 130, slow=True, **MEASURED),
    phase("probe", "reset", 130, slow=True, **MEASURED),
    phase("probe", "step", 130, signal.SIGINT, slow=True, **MEASURED),
    phase("main", "import", 130, **MEASURED, **ONLY_NAMED),  # in a thread
    phase("main", "import", 130, signal.SIGINT, slow=True, **STAGE),
    phase("main", "writer", 130, **WRITER),
    phase("main", "environment", 130, **INLINE),
    phase("main", "spaces", 130, signal.SIGINT, slow=True, **INLINE),
    phase("main", "reset", 130, slow=True, **INLINE),
    phase("main", "network", 130, slow=True, **INLINE, **NETWORK),
    phase("main", "stage", 130, slow=True, **STAGE, **TRAINER),
    phase("actor", "import", 0, slow=True, **SOON),
    phase("actor", "environment", 0, slow=True, **SOON),
    phase("actor", "spaces", 0, slow=True, **SOON),
    phase("actor", "reset", 0, signal.SIGINT, **SOON),
    phase("learner", "import of the trainer", 0, slow=True, **TRAINER),
    phase("learner", "network", 0, **NETWORK, **SOON),
    phase("learner", "network", 0, signal.SIGINT, slow=True, **NETWORK),
]


@pytest.mark.parametrize(("where", "number", "status", "changes"), PHASES)
def test_a_stop_request_ends_the_command_where_code_of_the_user_hangs(start, tmp_path, where, number, status, changes):
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
@pytest.mark.parametrize("phase", ["probe|step", "actor|reset", "learner|network"])
def test_a_second_ctrl_c_ends_it_at_once(start, tmp_path, phase):
    plain = startled(**NETWORK, **(MEASURED if phase.startswith("probe") else {}))
    command = start(plain, beside=BESIDE, environment={"STARTLED": f"{phase}|hang"})
    command.until((tmp_path / "reached").exists, "something that hangs")
    command.interrupt()
    if not phase.startswith("probe"):
        command.until(lambda: "Learning was interrupted." in command.output, "the first signal's answer")
        command.interrupt_again()
    assert command.wait() == 130, command.output
    assert "ended immediately" in command.output
    command.assert_left_nothing()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_resumed_run_that_is_stopped_as_its_checkpoint_is_loaded_keeps_that_checkpoint(start, tmp_path, number):
    plain = startled(**TRAINER)
    assert start(plain, beside=BESIDE).wait() == 0
    command = start(plain, "--resume", beside=BESIDE, environment={"STARTLED": "learner|checkpoint|hang"})
    before = newest_checkpoint(command.run_folder / "checkpoints")
    command.until((tmp_path / "reached").exists, "something that hangs")
    command.interrupt(number)
    assert command.wait() == 0, command.output
    after = newest_checkpoint(command.run_folder / "checkpoints")
    assert before is not None
    assert after is not None
    assert (after.number, after.steps) == (before.number, before.steps)
    command.assert_left_nothing()


# What is raised there. ------------------------------------------------------------------------------------------------


@pytest.mark.slow  # tests/config/test_tables.py has whatever else a plugin may raise
def test_a_plugin_that_exits_as_the_yaml_is_read_is_a_mistake_that_names_it(start, tmp_path):
    offer_a_plugin(tmp_path)
    environment = {"STARTLED": "main|import|SystemExit", "PYTHONPATH": str(tmp_path)}
    command = start(startled(environment__kind="added"), beside=BESIDE, environment=environment)
    assert command.wait() == 2, command.output
    assert command.output.startswith("'startled' of the installed package startled: SystemExit")


@pytest.mark.parametrize("what", ["KeyboardInterrupt", "asyncio.CancelledError", "BaseException"])
def test_what_a_trainer_s_module_raises_as_the_environments_are_counted_fails_the_run(tmp_path, monkeypatch, what):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "raising.py").write_text(f"import asyncio\nraise {what}")
    plain = cartpole(behaviors__CartPole__trainer_type="raising:Learns", **MEASURED, **INLINE)
    plain["checkpoint_settings"] = {"results_dir": str(tmp_path / "results"), "run_id": "run"}
    with pytest.raises(RunFailed, match=rf"{what.partition('.')[2] or what} \(at .*raising.py:2"):
        run(RunConfig.from_plain(plain, tmp_path / "run.yaml"))


SLOWED = """
import time
import gymnasium, numpy as np

class Slowed(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    alive = 0

    def __init__(self):
        Slowed.alive += 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        time.sleep(3e-4 * Slowed.alive**2)
        return np.zeros(2, np.float32), 1.0, False, False, {}
"""


def test_a_run_whose_instances_slow_each_other_down_starts_on_many_cores(start, tmp_path):
    (tmp_path / "slowed.py").write_text(SLOWED)
    (tmp_path / "sitecustomize.py").write_text("import os; os.sched_getaffinity = lambda pid: {*range(16)}")
    plain = startled(
        environment__factory="slowed:Slowed", environment__num_envs=4, behaviors__CartPole__max_steps=10**6
    )
    command = start(plain, environment={"PYTHONPATH": str(tmp_path)})
    command.until(lambda: "4 actors with 1 of the 4 environments each" in command.output, "the choice")
    command.interrupt()
    assert command.wait() in (0, 130), command.output
    command.assert_left_nothing()
