"""A trainer and an environment of the user's own, named in the YAML: examples/custom_stages/trainer.yaml."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from run_configs import INLINE, Plain, changed
from run_folders import read_whole_checkpoint

from headrace.config import RunConfig, load_config
from headrace.pipeline.common.errors import RunFailed
from headrace.pipeline.run import run
from headrace.pipeline.trial import try_run
from headrace.queues.messages import TrajectoryBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages import StageError
from headrace.stages.loading import load_attribute
from headrace.stages.trainer.protocol import TrainerContext

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_stages"
CONFIG = EXAMPLE / "trainer.yaml"
MISBEHAVING = Path(__file__).with_name("misbehaving_trainers.py")
SPEC = BehaviorSpec("LongPole", (ObservationSpec("vector", (4,)),), ActionSpec(discrete_branches=(2,)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for configurations, with the modules that they name beside them."""
    for module in (*EXAMPLE.glob("*.py"), MISBEHAVING):
        shutil.copy(module, tmp_path)
    return tmp_path


def example(**settings: Any) -> Plain:
    """trainer.yaml with changes to its behaviour's settings."""
    plain: Plain = yaml.safe_load(CONFIG.read_text())
    plain["behaviors"]["LongPole"] |= settings
    return plain


def make(spec: BehaviorSpec = SPEC, **hyperparameters: float) -> Any:
    given = hyperparameters or {"buffer_size": 8, "learning_rate": 0.01}
    settings = RunConfig.from_plain(example(hyperparameters=given)).behavior_settings("LongPole")
    return load_attribute("my_trainer:Reinforce", EXAMPLE, "trainer")(
        TrainerContext("LongPole", settings, spec, seed=1)
    )


def batch(rows: int, seed: int = 0) -> TrajectoryBatch:
    """One trajectory that goes on in another batch."""
    random = np.random.default_rng(seed)
    return TrajectoryBatch(
        "LongPole",
        0,
        rows={
            "obs_0": random.standard_normal((rows, 4)).astype(np.float32),
            "discrete_actions": random.integers(0, 2, (rows, 1)).astype(np.int32),
            "rewards": random.standard_normal(rows).astype(np.float32),
        },
        trajectories={
            "lengths": np.array([rows], np.int32),
            "terminated": np.array([False]),
            "next_obs_0": random.standard_normal((1, 4)).astype(np.float32),
        },
    )


# Alone. --------------------------------------------------------------------------------------------------------------


def test_returns_are_discounted_within_trajectories_and_bootstrapped_at_cuts():
    returns = load_attribute("my_trainer:discounted_returns", EXAMPLE, "function")
    rewards = np.array([1, 2, 4, 8, 16], np.float32)
    got = returns(rewards, np.array([3, 2]), np.array([0.0, 32.0]), 0.5)
    assert got.tolist() == [1 + 1 + 1, 2 + 2, 4, 8 + 8 + 8, 16 + 16]


def test_a_custom_trainers_buffer_survives_saving_and_loading():
    trainer, resumed = make(), make()
    trainer.add(batch(9))
    assert trainer.learn() == 9
    trainer.add(batch(5, seed=1))
    resumed.load_state_dict(trainer.state_dict())
    for each in (trainer, resumed):
        each.add(batch(4, seed=2))
        assert each.ready()
        assert each.learn() == 9
    assert (resumed.step, resumed.version) == (trainer.step, trainer.version) == (18, 2)
    assert np.array_equal(resumed.policy().weights, trainer.policy().weights)


def test_a_custom_trainer_names_settings_that_it_does_not_support():
    with pytest.raises(StageError, match="'learning_rate' is missing"):
        make(buffer_size=8)
    with pytest.raises(StageError, match="one observation and one discrete branch"):
        make(BehaviorSpec("LongPole", SPEC.observations, ActionSpec(continuous_size=1)))


# In the pipeline. ----------------------------------------------------------------------------------------------------


def test_the_example_trainer_learns(tmp_path: Path):
    overrides = ["pipeline.deterministic=true", "env_settings.seed=1", "behaviors.LongPole.max_steps=25000"]
    config = load_config(CONFIG, [*overrides, f"checkpoint_settings.results_dir={tmp_path}"])
    result = run(config).behaviors["LongPole"]
    # Untrained, this pole falls after some 35 steps; four seeds reached 90 to 135.
    assert result.recent_return is not None
    assert result.recent_return > 70


DRAWING = """
import random

import numpy as np
from my_trainer import Reinforce


class Drawing(Reinforce):
    def __init__(self, context):
        super().__init__(context)
        self._numpy, self._python = np.random.default_rng(7), random.Random(7)

    def learn(self):
        self._numpy.random(), self._python.random()
        return super().learn()

    def state_dict(self):
        return {**super().state_dict(), "numpy": self._numpy.bit_generator.state, "python": self._python.getstate()}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self._numpy.bit_generator.state = state["numpy"]
        self._python.setstate(state["python"])


class Visiting(Reinforce):
    def state_dict(self):
        return {**super().state_dict(), "visits": [{"cells": {(0, 1)}}]}
"""


def inline(folder: Path, trainer: str, **settings: Any) -> RunConfig:
    """trainer.yaml with another trainer of the folder's, in this process, as a file."""
    path = folder / "trainer.yaml"
    plain = example(trainer_type=trainer, max_steps=1100, summary_freq=1000, **settings)
    path.write_text(yaml.safe_dump(changed(plain, INLINE)))
    return load_config(path, [f"checkpoint_settings.results_dir={folder}", "checkpoint_settings.run_id=run"])


def test_random_generators_in_a_trainers_state_continue_after_a_resume(folder: Path):
    (folder / "drawing.py").write_text(DRAWING)
    result = run(inline(folder, "drawing:Drawing")).resume(steps=1100)
    state = read_whole_checkpoint(result.folder)["trainer@learner-LongPole"]["trainer"]
    numpy, python = np.random.default_rng(7), random.Random(7)
    assert state["version"] >= 4
    for _ in range(state["version"]):
        numpy.random(), python.random()
    assert state["numpy"] == numpy.bit_generator.state
    assert state["python"] == python.getstate()


def test_state_that_can_t_be_saved_is_named_by_its_keys(folder: Path):
    (folder / "drawing.py").write_text(DRAWING)
    with pytest.raises(RunFailed, match=r"checkpoint 0: state\['trainer'\]\['visits'\]\[0\]\['cells'\] is a set"):
        run(inline(folder, "drawing:Visiting"))


@pytest.mark.lengthy
def test_validate_names_state_that_can_t_be_saved(folder: Path):
    (folder / "drawing.py").write_text(DRAWING)
    (error,), _ = try_run(inline(folder, "drawing:Visiting"))
    assert "state['trainer']['visits'][0]['cells'] is a set, which can't be saved" in error


FOREIGN = """
import torch
from my_env import long_pole


def without_gradients(**options):
    torch.set_grad_enabled(False)
    return long_pole(**options)


def inferring(**options):
    torch.inference_mode().__enter__()
    return long_pole(**options)
"""


@pytest.mark.parametrize("how", ["without_gradients", "inferring"])
def test_a_trainer_learns_although_its_environment_has_disabled_gradients(folder: Path, how: str):
    (folder / "foreign.py").write_text(FOREIGN)
    config = inline(folder, "my_trainer:Reinforce")
    plain = config.to_plain()
    plain["environment"]["factory"] = f"foreign:{how}"
    with torch.inference_mode(False), torch.enable_grad():  # as before, afterwards
        result = run(config.rewritten(plain))
    assert result.behaviors["LongPole"].version >= 2


@pytest.mark.parametrize(
    ("trainer", "hyperparameters", "message"),
    [
        ("my_trainer:Reinforc", {}, r"behaviors.LongPole.trainer_type.* did you mean 'Reinforce'\?"),
        (
            "my_env:long_pole",
            {},
            "behaviors.LongPole.trainer_type: .*expected a class derived from headrace.Trainer",
        ),
        (
            "my_trainer:Reinforce",
            {"learning_rate": 0.1},
            "behaviors.LongPole.hyperparameters: 'buffer_size' is missing",
        ),
        ("misbehaving_trainers:StrangePolicies", {}, r"policy version 0 does not fit this network: .*expected tensor"),
    ],
)
def test_a_mistake_in_a_trainer_is_reported_before_training(
    folder: Path, trainer: str, hyperparameters: Plain, message: str
):
    path = folder / "trainer.yaml"
    plain = example(trainer_type=trainer, hyperparameters=hyperparameters)
    path.write_text(yaml.safe_dump(plain))
    inline = [f"pipeline.hosts.{kind}.kind=inline" for kind in ("actors", "learners")]
    config = load_config(path, [*inline, f"checkpoint_settings.results_dir={folder}"])
    with pytest.raises(RunFailed, match=message):
        run(config)
