"""Groups of agents on their way through the environment stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from fakes import EchoPolicy, counting_spec, policy_update

from headrace.queues.specs import BehaviorSpec
from headrace.stages.actor.environment_stage import EnvironmentStage
from headrace.stages.actor.policy_mapping import PolicyMappings
from headrace.stages.environments.protocol import AgentSteps, StepResult
from headrace.stages.errors import StageError
from headrace.stages.stage import StageContext

OFFSET = 5 << 32


class Team:
    """Three agents whose episodes never end, in the groups that it was made with."""

    num_envs = 1

    def __init__(self, spec, **of_groups):
        self.behavior_specs: Mapping[str, BehaviorSpec] = {"Team": spec}
        self.of_groups = of_groups

    def reset(self, seed=None):
        return self.step({})

    def step(self, actions):
        nothing = np.zeros(0, np.bool_)
        steps = AgentSteps(
            agent_ids=np.arange(3),
            env_ids=np.zeros(3, np.int32),
            episode_ids=np.zeros(3, np.int64),
            observations=(np.zeros((3, 4), np.int64),),
            rewards=np.zeros(3, np.float32),
            ended=0,
            terminated=nothing,
            truncated=nothing,
            **self.of_groups,
        )
        return StepResult({"Team": steps})

    def close(self):
        pass


async def started(grouped, **of_groups):
    spec = replace(counting_spec("Team"), grouped=grouped)
    stage = EnvironmentStage(lambda: Team(spec, **of_groups), PolicyMappings(EchoPolicy), OFFSET)
    stage.start(StageContext("environment"))
    await stage.reset(0)
    stage.update(policy_update("Team", 0))
    return stage


async def test_group_ids_are_unique_across_actors_and_0_stays_none():
    given = np.array([0, 2, 2])
    stage = await started(True, group_ids=given, group_rewards=np.array([0, 1, 1], np.float32))
    (step,) = stage.decide()
    assert step.group_ids.tolist() == [0, OFFSET + 2, OFFSET + 2]
    assert step.group_rewards.tolist() == [0, 1, 1]
    assert given.tolist() == [0, 2, 2]


async def test_missing_group_columns_are_zeros():
    (step,) = (await started(True)).decide()
    assert step.group_ids.tolist() == step.group_rewards.tolist() == [0, 0, 0]
    assert (step.group_ids.dtype, step.group_rewards.dtype) == (np.int64, np.float32)


async def test_behaviours_without_groups_have_no_group_columns():
    (step,) = (await started(False)).decide()
    assert step.group_ids is step.group_rewards is None


@pytest.mark.parametrize("column", ["group_ids", "group_rewards"])
async def test_groups_of_a_behaviour_that_said_it_had_none_are_refused(column):
    stage = await started(False, **{column: np.ones(3)})
    with pytest.raises(StageError, match=r"^Team: .*its BehaviorSpec is not grouped; make the spec with grouped=True"):
        stage.decide()


async def test_ticks_increase_with_every_step_and_restart():
    stage = await started(True)
    ticks = [stage.decide()[0].tick]
    await stage.advance()
    ticks += [stage.decide()[0].tick, stage.decide(again=True)[0].tick]
    await stage.reset(1)
    ticks.append(stage.decide()[0].tick)
    await stage.restart(2)
    ticks.append(stage.decide()[0].tick)
    first = ticks[0]
    assert [tick - first for tick in ticks] == [0, 1, 1, 2, 3]
