"""Brains that do not learn: how each kind is made, what it decides, and what stands in a learner's place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace.config import BehaviorSettings
from headrace.queues.columns import decision_columns
from headrace.queues.messages import ActionBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.brains import BrainRequest, StandIn, check_brain, make_brain
from headrace.stages.errors import LoadError, StageError
from headrace.stages.policy.design import design_of

SEEN = (ObservationSpec("seen", (3,)),)
MIXED = BehaviorSpec("Ball?team=1", SEEN, ActionSpec(2, (3, 2), masked=True))
OBSERVATIONS = (np.arange(12, dtype=np.float32).reshape(4, 3),)

SCRIPTS = """
import numpy as np
from headrace.queues.messages import ActionBatch

class First:
    def __init__(self, spec, size=0.5):
        self.spec, self.size = spec, size

    def __call__(self, observations, masks):
        rows = len(observations[0])
        discrete = np.stack([masks[:, :3].argmax(axis=1), masks[:, 3:].argmax(axis=1)], axis=1).astype(np.int32)
        return ActionBatch(np.full((rows, 2), self.size, np.float32), discrete)

class Silent:
    def __call__(self, observations, masks):
        return None
"""


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    (tmp_path / "scripted_brains.py").write_text(SCRIPTS)
    return tmp_path


def act(brain, masks=None, seed=0):
    return brain.act(OBSERVATIONS, masks, np.random.default_rng(seed)).actions


def masks(*allowed):
    found = np.zeros((4, 5), np.bool_)
    found[:, list(allowed)] = True
    return found


def test_random_actions_obey_bounds_masks_and_the_generator():
    brain = make_brain(BrainRequest("random", spec=MIXED))
    made = [act(brain, masks(1, 2, 4), seed) for seed in range(50)]
    choices = np.concatenate([each.discrete for each in made])
    assert set(choices[:, 0]) == {1, 2}
    assert set(choices[:, 1]) == {1}
    assert np.abs(np.concatenate([each.continuous for each in made])).max() <= 1
    np.testing.assert_array_equal(act(brain, None, 7).continuous, act(brain, None, 7).continuous)


def test_a_script_gets_its_arguments_and_masks(scripts):
    made = act(
        make_brain(BrainRequest("scripted_brains:First", {"size": 0.25}, folder=scripts, spec=MIXED)), masks(2, 3)
    )
    assert made.continuous.tolist() == [[0.25, 0.25]] * 4
    assert made.discrete.tolist() == [[2, 0]] * 4


def test_a_script_that_decides_nothing_is_named(scripts):
    brain = make_brain(
        BrainRequest("scripted_brains:Silent", key=("behaviors", "Ball", "brain"), folder=scripts, spec=MIXED)
    )
    with pytest.raises(StageError, match=r"behaviors.Ball.brain: scripted_brains:Silent returned None for 4 agents"):
        act(brain, masks(2, 3))


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (
            BrainRequest("scripted", key=("behaviors", "A", "brain")),
            "behaviors.A.brain: 'scripted' is the scripted player",
        ),
        (BrainRequest("scripted_brains:Nobody"), "has no attribute 'Nobody'"),
        (BrainRequest("pathlib:Path"), "is not a player: it has no method __call__"),
        (BrainRequest("scripted_brains:First", {"colour": 1}), "does not accept {'colour': 1}"),
        (BrainRequest("results/nobody"), f"there is no file or folder {Path('results/nobody')}"),
    ],
)
def test_a_brain_that_cannot_be_made_is_found_before_the_run(scripts, request_, said):
    (mistake,) = check_brain(BrainRequest(request_.use, request_.given, request_.key, folder=scripts))
    assert isinstance(mistake, LoadError)
    assert said in str(mistake)


def test_a_stand_in_has_the_columns_of_the_learner_and_its_form_of_actions(scripts):
    settings = BehaviorSettings.model_validate({"network_settings": {"memory": {"memory_size": 8}}})
    design = design_of(MIXED, settings)
    brain = make_brain(BrainRequest("scripted_brains:First", folder=scripts, spec=MIXED))
    made = StandIn(brain, design).act(OBSERVATIONS, masks(0, 4), np.random.default_rng(0))
    expected = decision_columns(MIXED, design.added_columns)
    assert {name: (str(c.dtype), c.shape[1:]) for name, c in made.columns.items()} == {
        column.name: (column.dtype, column.shape) for column in expected
    }
    assert made.columns["continuous_actions"].tolist() == [[1.5, 1.5]] * 4  # leaves a Gaussian policy as 1.5 / 3
    assert isinstance(made.actions, ActionBatch)
    assert made.actions.continuous.tolist() == [[0.5, 0.5]] * 4
