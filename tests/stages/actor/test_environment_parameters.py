"""The environment stage tells its environments their parameters, and says under which ones episodes began."""

from __future__ import annotations

import logging

import pytest
from fakes import Cast, CountingGroup, EchoPolicy, policy_update
from lessons import TellableGroup, told

from headrace.stages.actor.environment_stage import EnvironmentStage
from headrace.stages.actor.policy_mapping import PolicyMappings
from headrace.stages.stage import StageContext

UNIFORM = {"sampler_type": "uniform", "sampler_parameters": {"min_value": 1, "max_value": 6}}


async def started(length, num_envs=2, seed=1, replica=0, make=TellableGroup, stretch=(), **options):
    groups = []

    def make_group():
        groups.append(make([Cast("Walker")], num_envs, **options))
        return groups[-1]

    stage = EnvironmentStage(make_group, PolicyMappings(EchoPolicy))
    if length is not None:
        stage.parameters.receive(told(length))
    stage.start(StageContext("environment", replica))
    await stage.reset(seed, stretch)
    stage.update(policy_update("Walker", 0))
    return stage, groups


async def ticks(stage, count):
    """What the episodes that ended in each of so many ticks began under; None where no parameters came."""
    generations = []
    for _ in range(count):
        for step in stage.decide():
            generations.append(None if step.parameters is None else step.parameters.tolist())
        await stage.advance()
    return generations


async def lengths(stage, count):
    """Decisions of the episodes that ended, by instance."""
    lengths_by_instance = {}
    for _ in range(count):
        for step in stage.decide():
            for row in range(step.ended):
                lengths_by_instance.setdefault(int(step.env_ids[row]), []).append(int(step.observations[0][row, 2]))
        await stage.advance()
    return lengths_by_instance


async def test_episodes_are_played_with_the_parameters_from_the_first_on():
    stage, _ = await started(3)
    assert await lengths(stage, 10) == {0: [3, 3, 3], 1: [3, 3, 3]}


async def test_a_change_applies_from_each_instance_s_next_episode():
    stage, _ = await started(3)
    await lengths(stage, 2)
    stage.parameters.receive(told(1, generation=1))
    assert await lengths(stage, 4) == {0: [3, 1, 1], 1: [3, 1, 1]}


async def test_each_ending_says_what_its_episode_began_under():
    stage, _ = await started(2)
    await ticks(stage, 1)
    stage.parameters.receive(told(2, generation=5))
    assert await ticks(stage, 5) == [[], [0, 0], [], [5, 5], []]


async def test_samplers_draw_for_each_episode_by_seed_replica_and_stretch():
    async def course(**options):
        stage, _ = await started(UNIFORM, num_envs=4, **options)
        return await lengths(stage, 60)

    first = await course()
    assert {length for episodes in first.values() for length in episodes} == {1, 2, 3, 4, 5}
    assert first[0][:8] != first[1][:8]
    assert await course() == first
    assert await course(seed=2) != first
    assert await course(replica=1) != first
    assert await course(stretch=(3,)) != first


async def test_a_restarted_group_gets_the_parameters():
    stage, groups = await started(3)
    stage.parameters.receive(told(1, generation=2))
    await stage.restart(9, (4,))
    assert groups[1].parameters is stage.parameters
    assert await lengths(stage, 3) == {0: [1, 1], 1: [1, 1]}
    assert (await ticks(stage, 1)) == [[2, 2]], "nothing of the older generation is left"


@pytest.mark.parametrize(("replica", "warnings"), [(0, 1), (1, 0)])
async def test_only_the_first_actor_warns_of_environments_without_parameters(caplog, replica, warnings):
    caplog.set_level(logging.WARNING)
    stage, _ = await started(3, replica=replica, make=CountingGroup)
    await stage.restart(2)
    assert len(caplog.records) == warnings
    assert all("CountingGroup does not accept parameters" in record.getMessage() for record in caplog.records)
