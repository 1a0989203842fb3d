"""Checkpoints, recordings and `.pt` files that version 0.1.0 wrote before its modules were laid in rooms still load.

`tests/data/earlier/` holds five tiny deterministic runs of that code (the configurations are in it): a run folder with
its last checkpoint and its newest policy, the recording at the trainer's inlet, and what that policy decided.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from run_configs import changed
from run_folders import read_whole_checkpoint, streams
from runs import run_here

from headrace.pipeline.policies.export import load_acting_policy, read_export
from headrace.stages.trainer.on_policy.trainer import OnPolicyTrainer
from headrace.stages.trainer.poca import POCATrainer
from headrace.stages.trainer.ppo import PPOTrainer
from headrace.stages.trainer.sac.trainer import SACTrainer

EARLIER = Path(__file__).parents[1] / "data" / "earlier"
BEHAVIORS = {"ppo": "CartPole", "self_play": "Volley", "sac": "Pendulum", "memory": "CartPole", "poca": "Team"}


def normalising_as_then(trainer):
    """Begin with the imagined observation of 0 that was counted then."""
    if (normalizer := trainer._intake.normalizer) is not None:
        normalizer.load_state_dict({"steps": 1, "mean": normalizer.mean, "squares": np.ones_like(normalizer.mean)})


class WholeTrajectories(OnPolicyTrainer[Any, Any]):
    """Learns from whole trajectories as soon as they have `buffer_size` rows or more."""

    def __init__(self, context):
        given = context.settings.hyperparameters
        self.enough = given["buffer_size"]
        roomy = {"hyperparameters": {**given, "buffer_size": 10_000}}
        super().__init__(replace(context, settings=context.settings.model_copy(update=roomy)))
        normalising_as_then(self)

    def ready(self):
        return len(self._buffer) >= self.enough


class PPOAsThen(WholeTrajectories, PPOTrainer):
    pass


class POCAAsThen(WholeTrajectories, POCATrainer):
    pass


class SACAsThen(SACTrainer):
    def __init__(self, context):
        super().__init__(context)
        normalising_as_then(self)


AS_THEN = {"ppo": PPOAsThen, "poca": POCAAsThen, "sac": SACAsThen}


def assert_close(actual, expected):
    """Another kind of CPU adds up in another order."""
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-4)


def configuration(run):
    """What the run was configured by; of self-play the game has moved since, twice."""
    plain = yaml.safe_load((EARLIER / run / "run" / "configuration.yaml").read_text())
    return changed(plain, {"record": None})


@pytest.fixture(params=list(BEHAVIORS))
def run(request):
    return request.param


def test_a_checkpoint_is_resumed(run, tmp_path):
    behavior = BEHAVIORS[run]
    shutil.copytree(EARLIER / run / "run", tmp_path / "again")
    manifest = tmp_path / "again" / "checkpoints" / "manifest.json"
    steps = json.loads(manifest.read_text())["steps"][behavior]
    plain = changed(configuration(run), {f"behaviors__{behavior}__max_steps": steps + 300})
    result = run_here(plain, tmp_path, "again", resume=True)
    assert result.behaviors[behavior].step >= steps + 300
    assert f"trainer@learner-{behavior}" in read_whole_checkpoint(result.folder)


def test_a_recording_gives_the_weights_that_were_learned_from_it(run, tmp_path):
    behavior = BEHAVIORS[run]
    replayed = changed(configuration(run), {"replay": {"streams": list(streams(EARLIER / run))}})
    settings = replayed["behaviors"][behavior]
    settings["trainer_type"] = f"{__name__}:{AS_THEN[settings['trainer_type']].__name__}"
    if run != "sac":
        settings["hyperparameters"]["decoupled"] = False
    result = run_here(replayed, tmp_path, "replayed")
    learned, expected = (
        read_whole_checkpoint(folder)[f"trainer@learner-{behavior}"]["policy"]["weights"]
        for folder in (result.folder, EARLIER / run / "run")
    )
    assert_close(learned, expected)


def test_an_exported_policy_decides_as_it_did(run):
    path = EARLIER / run / "run" / BEHAVIORS[run] / "checkpoint.pt"
    expected = np.load(EARLIER / run / "decision.npz")
    np.testing.assert_array_equal(read_export(path).update.weights, expected["weights"])
    observations = tuple(expected[name] for name in sorted(expected.files) if name.startswith("observation_"))
    decision = load_acting_policy(path).act(observations, None, np.random.default_rng(1))
    assert_close(decision.actions.continuous, expected["continuous"])
    np.testing.assert_array_equal(decision.actions.discrete, expected["discrete"])
    assert_close(decision.columns["log_probs"], expected["log_probs"])
