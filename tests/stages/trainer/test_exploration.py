"""Exploration of a trainer's own: what actors draw, how probable it was, and where nothing explores."""

from __future__ import annotations

import sys
from dataclasses import replace
from math import log
from pathlib import Path

import numpy as np
import pytest

from headrace.config import BehaviorSettings, NetworkSettings, RunConfig
from headrace.pipeline.policies.export import export_policy, load_acting_policy
from headrace.pipeline.policies.inference import acting_design
from headrace.queues.messages import PolicyUpdate
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import LoadError, StageError
from headrace.stages.policy.design import PolicyDesign, design_of, policy_layout
from headrace.stages.policy.numpy_policy import NumpyPolicy, make_policy
from headrace.stages.policy.onnx.model import onnx_model
from headrace.stages.policy.onnx.onnx_policy import OnnxPolicy
from headrace.stages.policy.sampling import ActionSampler
from headrace.stages.trainer.exploration import EpsilonGreedy, GaussianNoise
from headrace.stages.trainer.protocol import Schedule

FALLING = Schedule("linear", 1.0, 0.2, 1000)
MODULE = """
from headrace import Trainer
from headrace.training import EpsilonGreedy, Schedule


class Choosy(Trainer):
    @classmethod
    def exploration(cls, settings):
        return EpsilonGreedy(Schedule("constant", float(settings.hyperparameters["epsilon"]), 0.0, 1))


class Strange(Trainer):
    exploration = staticmethod(lambda settings: 0.1)
"""


def design(actions, exploration, squashed=False, **network):
    spec = BehaviorSpec("Test", (ObservationSpec("o", (2,)),), actions)
    return PolicyDesign(spec, NetworkSettings(**network), squashed, exploration=exploration)


def sampler(made, step=0):
    action_sampler = ActionSampler(made)
    action_sampler.adopt(PolicyUpdate("Test", 1, np.zeros(0, np.float32), (), step))
    return action_sampler


def policy_of(made: PolicyDesign, step: int = 0):
    """A policy whose last layer's biases are 0, 1, …, and all weights 0."""
    tensors = {name: np.zeros(shape, np.float32) for name, shape in policy_layout(made)}
    tensors["action.bias"] += np.arange(made.output_size)
    weights = np.concatenate([tensor.ravel() for tensor in tensors.values()])
    update = PolicyUpdate("Test", 1, weights, policy_layout(made), step)
    policy = make_policy(made)
    policy.load(update)
    return policy, update


@pytest.mark.parametrize(("step", "epsilon"), [(0, 1.0), (500, 0.6), (5000, 0.2)])
def test_epsilon_follows_the_step_of_the_policy_and_log_probs_are_those_of_the_draw(step, epsilon):
    d = 20_000
    heads = np.tile(np.array([[1.0, 5.0, 2.0]], np.float32), (d, 1))
    made = sampler(design(ActionSpec(discrete_branches=(3,)), EpsilonGreedy(FALLING)), step)
    actions, columns = made.sample(heads, None, np.random.default_rng(0), deterministic=False)
    shares = np.bincount(actions.discrete[:, 0], minlength=3) / d
    expected = np.array([epsilon / 3, 1 - epsilon + epsilon / 3, epsilon / 3])
    np.testing.assert_allclose(shares, expected, atol=0.015)
    np.testing.assert_allclose(columns["log_probs"][:, 0], np.log(expected[actions.discrete[:, 0]]), atol=1e-5)
    best, _ = made.sample(heads, None, np.random.default_rng(0), deterministic=True)
    assert (best.discrete == 1).all()


def test_forbidden_choices_are_neither_greedy_nor_drawn():
    masks = np.tile([[True, False, True, True, False]], (3000, 1))
    heads = np.tile(np.array([[1.0, 5.0, 2.0, 0.0, 9.0]], np.float32), (3000, 1))
    made = sampler(design(ActionSpec(discrete_branches=(3, 2), masked=True), EpsilonGreedy(FALLING)), 1000)
    actions, columns = made.sample(heads, masks, np.random.default_rng(0), deterministic=False)
    assert set(actions.discrete[:, 0].tolist()) == {0, 2}
    assert (actions.discrete[:, 1] == 0).all()
    expected = np.where(actions.discrete[:, 0] == 2, log(0.9), log(0.1))
    np.testing.assert_allclose(columns["log_probs"], np.stack([expected, 0 * expected], axis=1), atol=1e-5)


@pytest.mark.parametrize("squashed", [False, True])
def test_noise_has_the_scheduled_deviation_and_choices_are_greedy(squashed):
    made = design(ActionSpec(1, (2,)), GaussianNoise(FALLING), squashed, num_layers=1)
    spreads = [3.0] if squashed else []
    heads = np.tile(np.array([[0.25, *spreads, 0.0, 1.0]], np.float32), (20_000, 1))
    drawing = sampler(made, 1000)
    drawing.log_sigma = np.array([3.0], np.float32)
    _, columns = drawing.sample(heads, None, np.random.default_rng(0), deterministic=False)
    drawn = columns["continuous_actions"]
    drawn = np.arctanh(drawn) if squashed else drawn
    assert (drawn.mean(), drawn.std()) == pytest.approx((0.25, 0.2), abs=0.01)
    assert (columns["discrete_actions"] == 1).all()


def test_policies_that_explore_by_themselves_are_not_computed_together():
    made = design(ActionSpec(discrete_branches=(3,)), EpsilonGreedy(FALLING))
    first, second = NumpyPolicy(made), NumpyPolicy(made)
    assert not first.joins(second, deterministic=False)
    assert first.joins(second, deterministic=True)


# The trainer's class says how its policies explore. -------------------------------------------------------------------


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A configuration whose trainer is the module's `Choosy`, as a function of changes to the behaviour."""
    (tmp_path / "choosy.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def make(trainer="Choosy", hyperparameters=None, **block):
        behavior = {
            "trainer_type": f"choosy:{trainer}",
            "hyperparameters": hyperparameters or {"epsilon": 0.5},
            **block,
        }
        return RunConfig.from_plain({"behaviors": {"Test": behavior}}, tmp_path / "config.yaml")

    yield make
    sys.modules.pop("choosy", None)


def spec_of(actions: ActionSpec) -> BehaviorSpec:
    return BehaviorSpec("Test", (ObservationSpec("o", (2,)),), actions)


def test_actors_explore_and_all_other_policies_of_the_trainer_are_greedy(config, tmp_path: Path):
    spec, run_config = spec_of(ActionSpec(discrete_branches=(3,))), config()
    exploring, update = policy_of(acting_design(run_config, spec))
    settings: BehaviorSettings = run_config.behavior_settings("Test")
    greedy = design_of(spec, settings, run_config.source_folder)
    elsewhere, _ = policy_of(greedy)
    onnx = tmp_path / "model.onnx"
    onnx.write_bytes(onnx_model(greedy, update))
    path = export_policy(tmp_path / "run", update, spec, settings, source_folder=run_config.source_folder)
    seen = (np.zeros((500, 2), np.float32),)
    for policy, choices in (
        (exploring, {0, 1, 2}),
        (elsewhere, {2}),
        (load_acting_policy(path), {2}),
        (OnnxPolicy(onnx, greedy), {2}),
    ):
        decision = policy.act(seen, None, np.random.default_rng(0), deterministic=False)
        assert set(decision.actions.discrete[:, 0].tolist()) == choices


def test_mistakes_in_an_exploration_are_named(config):
    spec = spec_of(ActionSpec(discrete_branches=(3,)))
    with pytest.raises(LoadError, match=r"behaviors.Test.trainer_type: choosy:Choosy.exploration raised KeyError"):
        acting_design(config(hyperparameters={"eps": 1}), spec)
    with pytest.raises(LoadError, match=r"must return None or an object with the method `explored`, got 0.1"):
        acting_design(config("Strange"), spec)
    with pytest.raises(StageError, match=r"gsde can't be combined with choosy:Choosy"):
        acting_design(config(network_settings={"gsde": {}}), replace(spec, actions=ActionSpec(2)))
