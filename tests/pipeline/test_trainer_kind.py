"""The table of trainers is all that a new built-in trainer needs: one is added here, from outside, and trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from pydantic import Field
from run_configs import INLINE, cartpole
from run_folders import read_whole_checkpoint
from runs import run_here

from headrace.config import ConfigError, RunConfig
from headrace.config.fields import Int
from headrace.config.hyperparameters import Hyperparameters
from headrace.config.trainers import TRAINERS, TrainerKind
from headrace.queues.messages import PolicyUpdate, TrajectoryBatch
from headrace.stages.policy.design import design_of, policy_layout
from headrace.stages.trainer.protocol import Trainer, TrainerContext


class WanderHyperparameters(Hyperparameters):
    """`hyperparameters` of a behaviour whose `trainer_type` is `wander`."""

    rows: Int = Field(400, gt=0, description="Steps before each change of the weights.")
    stride: Int = Field(3, gt=0, description="How far the weights move.")

    def extra_columns(self) -> tuple[str, ...]:
        return ("action_heads",) if self.stride > 3 else ()


class WanderingTrainer(Trainer):
    """Moves all weights by `stride` in each update, whatever came of the last one."""

    def __init__(self, context: TrainerContext) -> None:
        super().__init__(context)
        assert isinstance(context.settings.hyperparameters, WanderHyperparameters)
        self._hyperparameters = context.settings.hyperparameters
        self._layout = policy_layout(design_of(context.spec, context.settings, context.folder))
        self._step = self._version = self._held = self._with_heads = 0

    @property
    def step(self) -> int:
        return self._step

    @property
    def version(self) -> int:
        return self._version

    @property
    def rows_per_update(self) -> int:
        return self._hyperparameters.rows

    def add(self, batch: TrajectoryBatch) -> None:
        self._with_heads += batch.num_rows if "action_heads" in batch.rows else 0
        self._step += batch.num_rows
        self._held += batch.num_rows

    def ready(self) -> bool:
        return self._held >= self.rows_per_update

    def learn(self) -> int:
        used, self._held = self._held, 0
        self._version += 1
        return used

    def policy(self) -> PolicyUpdate:
        size = sum(int(np.prod(shape)) for _, shape in self._layout)
        weights = np.full(size, self._version * self._hyperparameters.stride, np.float32)
        return PolicyUpdate(self.context.behavior, self._version, weights, self._layout, self._step)

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step, "version": self._version, "held": self._held, "with_heads": self._with_heads}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._step, self._version, self._held = state["step"], state["version"], state["held"]


@pytest.fixture(autouse=True)
def _wander(monkeypatch):
    monkeypatch.setitem(TRAINERS, "wander", TrainerKind(f"{__name__}:WanderingTrainer", WanderHyperparameters))


def wander(**hyperparameters: Any) -> dict[str, Any]:
    return cartpole(
        **INLINE, behaviors__CartPole__trainer_type="wander", behaviors__CartPole__hyperparameters=hyperparameters
    )


@pytest.mark.lengthy
def test_a_trainer_needs_only_its_table_entry(tmp_path):
    result = run_here(wander(rows=600), tmp_path, "run").behaviors["CartPole"]
    assert result.step >= 3000
    assert result.version >= 3
    state = read_whole_checkpoint(tmp_path / "run")["trainer@learner-CartPole"]["trainer"]
    assert (state["version"], state["step"], state["with_heads"]) == (result.version, result.step, 0)


@pytest.mark.lengthy
def test_a_trainer_whose_settings_ask_for_a_column_of_the_policies_gets_it(tmp_path):
    result = run_here(wander(stride=4), tmp_path, "run").behaviors["CartPole"]
    state = read_whole_checkpoint(tmp_path / "run")["trainer@learner-CartPole"]["trainer"]
    assert state["with_heads"] == result.step >= 3000


def test_its_settings_model_checks_fills_in_and_explains():
    settings = RunConfig.from_plain(wander(stride=5)).behavior_settings("CartPole")
    assert settings.hyperparameters == WanderHyperparameters(stride=5)
    assert RunConfig.from_plain(wander()).to_plain()["behaviors"]["CartPole"]["hyperparameters"] == {
        "rows": 400,
        "stride": 3,
    }
    with pytest.raises(ConfigError, match=r"hyperparameters\.strid: unknown key; did you mean 'stride'\?"):
        RunConfig.from_plain(wander(strid=5))
    with pytest.raises(ConfigError, match=r"unknown key for this trainer_type; it is valid only for 'sac'"):
        RunConfig.from_plain(wander(tau=0.1))
