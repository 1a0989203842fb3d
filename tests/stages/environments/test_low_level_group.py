"""Objects of ML-Agents' interface as an environment group: what is taken, and what is refused with the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from low_level_env import BRAIN, GuessEnv, ScriptedEnv, behavior, decisions, endings, observation

from headrace.queues.messages import ActionBatch
from headrace.stages.environments.low_level import LowLevelGroup
from headrace.stages.environments.parameters import EnvironmentParameters, EpisodeParameters
from headrace.stages.environments.protocol import EnvironmentGroup
from headrace.stages.errors import BrokenEnvironmentError, EnvironmentEnded, StageError

VECTOR = {BRAIN: behavior(observation(2), continuous=1)}
NOBODY = endings(obs=[np.zeros((0, 2))])


def group(*envs: Any) -> LowLevelGroup:
    return LowLevelGroup(envs, "environment factory 'mine:make'")


def asking(*ids, **more):
    return decisions(*ids, obs=[[[float(i), 0.5] for i in ids]], **more)


def over(*ids, **more):
    return endings(*ids, obs=[[[float(i), 0.7] for i in ids]], **more)


def choose(result, **chosen):
    steps = result.steps[BRAIN]
    count = len(steps.agent_ids) - steps.ended
    return {
        BRAIN: ActionBatch(np.zeros((count, chosen.get("continuous", 0)), np.float32), np.ones((count, 1), np.int32))
    }


def test_a_sloppy_environment_is_stepped_as_any_other():
    made = group(GuessEnv(agents=2, length=3), GuessEnv(agents=1, length=2))
    assert isinstance(made, EnvironmentGroup)
    assert dict(made.behavior_specs) == {}
    result = made.reset()
    spec = made.behavior_specs[BRAIN]
    assert (spec.actions.discrete_branches, spec.actions.masked) == ((3,), True)
    steps = result.steps[BRAIN]
    assert steps.agent_ids.tolist() == [0, 1, 2**32]
    assert steps.env_ids.tolist() == [0, 0, 1]
    assert steps.action_masks.tolist() == [[True, True, False]] * 3
    ended = []
    for _ in range(6):
        result = made.step(choose(result))
        steps = result.steps[BRAIN]
        ended += steps.env_ids[: steps.ended].tolist()
        assert set(np.abs(steps.rewards).tolist()) <= {0.0, 1.0}
        assert (
            steps.rewards[steps.ended :][np.isin(steps.agent_ids[steps.ended :], steps.agent_ids[: steps.ended])] == 0
        ).all()
    assert (ended.count(0), ended.count(1)) == (4, 3)
    made.close()


def test_actions_go_to_the_requesting_agents_row_by_row():
    env = ScriptedEnv(
        VECTOR, {BRAIN: (asking(4, 2), NOBODY)}, {BRAIN: (asking(2), over(4, reward=[3.0], interrupted=[True]))}
    )
    other = ScriptedEnv(VECTOR, {BRAIN: (asking(1), NOBODY)}, {BRAIN: (asking(1), NOBODY)})
    made = group(env, other)
    made.reset()
    steps = made.step(
        {BRAIN: ActionBatch(np.array([[0.4], [0.2], [0.1]], np.float32), np.zeros((3, 0), np.int32))}
    ).steps[BRAIN]
    assert env.acted == [(BRAIN, [[pytest.approx(0.4)], [pytest.approx(0.2)]], [[], []])]
    assert other.acted == [(BRAIN, [[pytest.approx(0.1)]], [[]])]
    assert (steps.ended, steps.agent_ids.tolist()) == (1, [4, 2, 2**32 + 1])
    assert (steps.truncated.tolist(), steps.rewards.tolist()) == ([True], [3, 0, 0])


def test_masks_come_by_branch_or_in_one_or_not_at_all():
    specs = {BRAIN: behavior(observation(2), branches=(2, 3))}
    by_branch = [np.array([[True, False]]), np.array([[False, False, True]])]
    whole = np.array([[False, True, False, False, False]])
    made = group(
        ScriptedEnv(
            specs,
            {BRAIN: (asking(1, mask=by_branch), NOBODY)},
            {BRAIN: (asking(1, mask=whole), NOBODY)},
            {BRAIN: (asking(1, mask=[whole]), NOBODY)},
            {BRAIN: (asking(1, mask=None), NOBODY)},
        )
    )
    result = made.reset()
    told = [result.steps[BRAIN].action_masks.tolist()]
    for _ in range(3):
        result = made.step({BRAIN: ActionBatch(np.zeros((1, 0), np.float32), np.zeros((1, 2), np.int32))})
        told.append(result.steps[BRAIN].action_masks.tolist())
    one, two = [[False, True, True, True, False]], [[True, False, True, True, True]]
    assert told == [one, two, two, [[True] * 5]]


def test_observations_are_what_their_rank_and_dimensions_say():
    picture_last, picture_first = (2, 2, 1), (1, 2, 2)
    specs = {
        BRAIN: behavior(
            observation(2, kind=1, name="goal"),
            observation(4, 3, properties=(4, 1), name="things"),
            observation(3, 8, 8, properties=picture_first, name="first"),
            observation(8, 8, 3, properties=picture_last, name="last"),
            observation(8, 8, 3, name=""),
            continuous=1,
        )
    }
    seen = [np.zeros((1, *o.shape)) for o in specs[BRAIN].observation_specs]
    made = group(ScriptedEnv(specs, {BRAIN: (decisions(1, obs=seen), endings(obs=[a[:0] for a in seen]))}))
    made.reset()
    found = made.behavior_specs[BRAIN].observations
    assert [o.kind for o in found] == ["vector", "set", "image", "image", "image"]
    assert [o.channels_last for o in found] == [False, False, False, True, True]
    assert [o.goal for o in found] == [True, False, False, False, False]
    assert found[4].name == "observation_4"


def test_groups_are_passed_on_and_missing_columns_of_older_versions_are_zero():
    with_groups = asking(1, 2, group_id=[0, 7], group_reward=[0.0, 2.0])
    old = endings(1, obs=[[[0.0, 0.0]]], max_step=[True])
    del old.interrupted
    made = group(
        ScriptedEnv(VECTOR, {BRAIN: (asking(1, 2), NOBODY)}, {BRAIN: (with_groups, over(1))}, {BRAIN: (asking(2), old)})
    )
    result = made.reset()
    steps = made.step({BRAIN: ActionBatch(np.zeros((2, 1), np.float32), np.zeros((2, 0), np.int32))}).steps[BRAIN]
    assert (steps.group_ids.tolist(), steps.group_rewards.tolist()) == ([0, 0, 7], [0, 0, 2])
    steps = made.step({BRAIN: ActionBatch(np.zeros((2, 1), np.float32), np.zeros((2, 0), np.int32))}).steps[BRAIN]
    assert steps.truncated.tolist() == [True]
    assert result.steps[BRAIN].group_ids.tolist() == [0, 0]


def test_behaviours_may_come_later():
    specs = dict(VECTOR)
    env = ScriptedEnv(specs, {BRAIN: (asking(1), NOBODY)}, {BRAIN: (asking(1), NOBODY), "Late": (asking(9), NOBODY)})
    made = group(env)
    result = made.reset()
    specs["Late"] = VECTOR[BRAIN]
    result = made.step(choose(result, continuous=1))
    assert [*result.steps] == [BRAIN, "Late"]


def test_a_step_without_agents_is_an_empty_tick():
    made = group(ScriptedEnv(VECTOR, {BRAIN: (asking(), NOBODY)}, {BRAIN: (asking(3), NOBODY)}))
    assert dict(made.reset().steps) == {}
    assert made.step({}).steps[BRAIN].agent_ids.tolist() == [3]


MISTAKES = [
    ({"obs": [np.zeros((1, 3))]}, r"DecisionSteps.obs\[0\] has shape \(1, 3\); expected \(1, 2\)"),
    ({"obs": [[[0.0, float("nan")]]]}, r"DecisionSteps.obs\[0\] of agent 1 at \[1\] is nan; expected a finite number"),
    ({"reward": [1.0, 2.0]}, r"DecisionSteps.reward has shape \(2,\); expected \(1,\)"),
    (
        {"obs": [np.array([[0.0, 1e39]])]},
        r"DecisionSteps.obs\[0\] of agent 1 at \[1\] is 1e\+39, which is too large for float32",
    ),
    ({"reward": [float("inf")]}, "DecisionSteps.reward of agent 1 is inf; expected a finite number"),
    ({"reward": None}, r"DecisionSteps.reward has shape \(\); expected \(1,\)"),
]


@pytest.mark.parametrize(("wrong", "says"), MISTAKES)
def test_steps_that_do_not_fit_their_spec_are_named(wrong, says):
    steps = asking(1)
    for name, value in wrong.items():
        setattr(steps, name, value)
    made = group(ScriptedEnv(VECTOR, {BRAIN: (steps, NOBODY)}))
    with pytest.raises(BrokenEnvironmentError, match=rf"'mine:make', behaviour 'Guess\?team=0': .*{says}"):
        made.reset()


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        ([[True]], r"action_mask has shape \(1, 1\), for 1 agents; expected .*: 3$"),
        ([[True, True, True]], "action_mask of row 0 forbids all 3 choices; expected at least one false value"),
    ],
)
def test_an_invalid_mask_is_named(mask, says):
    specs = {BRAIN: behavior(observation(2), branches=(3,))}
    made = group(ScriptedEnv(specs, {BRAIN: (asking(1, mask=mask), NOBODY)}))
    with pytest.raises(BrokenEnvironmentError, match=says):
        made.reset()


def test_invalid_specs_are_refused():
    with pytest.raises(StageError, match=r"behavior_specs\['Guess\?team=0'\] is not an ML-Agents BehaviorSpec"):
        group(ScriptedEnv({BRAIN: object()}, {})).reset()
    with pytest.raises(StageError, match=r"'seen' has shape \(1, 2, 3, 4\)"):
        group(ScriptedEnv({BRAIN: behavior(observation(1, 2, 3, 4), continuous=1)}, {})).reset()


def test_instances_have_to_be_alike():
    other = {BRAIN: behavior(observation(3), continuous=1)}
    made = group(
        ScriptedEnv(VECTOR, {BRAIN: (asking(1), NOBODY)}),
        ScriptedEnv(other, {BRAIN: (decisions(1, obs=[[[0.0] * 3]]), endings(obs=[[]]))}),
    )
    with pytest.raises(StageError, match="instance 1: behaviour .* but in an earlier instance"):
        made.reset()


def test_an_environment_that_raises_is_broken():
    with pytest.raises(BrokenEnvironmentError, match=r"its reset\(\) raised OSError: unplugged"):
        group(ScriptedEnv(VECTOR, OSError("unplugged"))).reset()


class UnityCommunicatorStoppedException(Exception):
    """As ML-Agents has it."""


def test_an_environment_that_stops_leaves_the_others_running():
    class Quits(GuessEnv):
        def step(self):
            raise UnityCommunicatorStoppedException("bye")

    both = group(Quits(agents=2, length=3), GuessEnv(agents=1, length=30))
    result = both.step(choose(both.reset()))
    assert result.closed.tolist() == [0]
    assert set(result.steps[BRAIN].env_ids.tolist()) == {1}
    result = both.step(choose(result))
    assert (result.closed, set(result.steps[BRAIN].env_ids.tolist())) == (None, {1})
    assert both.reset().closed.tolist() == [0]


def test_the_last_environment_that_stops_ends_the_run():
    with pytest.raises(EnvironmentEnded, match="has ended: bye"):
        group(ScriptedEnv(VECTOR, UnityCommunicatorStoppedException("bye"))).reset()


def test_parameters_that_no_environment_can_receive_are_warned_of(caplog):
    parameters = EpisodeParameters()
    parameters.receive(EnvironmentParameters(1, {"gravity": 3.0}))
    group(ScriptedEnv(VECTOR)).set_parameters(parameters)
    assert "add a parameter side_channels to its factory" in caplog.text
