"""Evaluation: when a policy is played, and what its score is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from fakes import DECISION, Cast, CountingGroup, EchoPolicy, counting_spec, policy_update

from headrace.config import ActionRepeatSettings
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.factory import RepeatingGroup
from headrace.stages.environments.protocol import AgentSteps, StepResult
from headrace.stages.evaluation import EvaluationStage
from headrace.stages.evaluation.opponents import NewestOpponents
from headrace.stages.policy.protocol import Decision, Recall
from headrace.stages.stage import StageContext


class Staircase:
    """Instance i has one agent, whose episodes take i + 1 steps and bring `height` × (i + 1)."""

    def __init__(self, num_envs=2, height=1.0):
        self.num_envs = num_envs
        self.behavior_specs: Mapping[str, BehaviorSpec] = {"Walker": counting_spec("Walker")}
        self.seeds = []
        self.closed = 0
        self.height = height

    def reset(self, seed=None):
        self.seeds.append(seed)
        self._taken = np.zeros(self.num_envs, np.int64)
        return self.result(np.zeros(self.num_envs, np.bool_))

    def step(self, actions):
        (batch,) = actions.values()
        assert len(batch.discrete) == self.num_envs
        self._taken += 1
        return self.result(self._taken > np.arange(self.num_envs))

    def close(self):
        self.closed += 1

    def result(self, over):
        ended = np.flatnonzero(over)
        rewards = np.where(self._taken, self.height, 0.0)
        self._taken[ended] = 0
        ids = np.concatenate([ended, np.arange(self.num_envs)])
        steps = AgentSteps(
            agent_ids=ids,
            env_ids=ids.astype(np.int32),
            episode_ids=np.zeros(len(ids), np.int64),
            observations=(np.zeros((len(ids), 4), np.int64),),
            rewards=np.concatenate([rewards[ended], np.where(over, 0.0, rewards)]).astype(np.float32),
            ended=len(ended),
            terminated=np.ones(len(ended), np.bool_),
            truncated=np.zeros(len(ended), np.bool_),
        )
        return StepResult({"Walker": steps})


class Deterministic(EchoPolicy):
    """Fails unless it is asked for its best."""

    def act(self, observations, masks, random, deterministic=False, recall=None):
        assert deterministic
        return super().act(observations, masks, random, deterministic, recall)


def evaluation(group, every=100, episodes=4, opponents=None, make_policy=Deterministic, report=None, **options):
    reports = []
    opponents = opponents or NewestOpponents()
    report = report or reports.append
    stage = EvaluationStage(lambda: group, make_policy, opponents, every, episodes, report, **options)
    stage.start(StageContext("evaluation"))
    return stage, reports


def play(stage, *steps, behavior="Walker", finish=False):
    async def run():
        for step in steps:
            async for _ in stage.process(policy_update(behavior, step // 10, step)):
                pytest.fail("evaluation yields nothing")
        if finish:
            async for _ in stage.finish():
                pytest.fail("evaluation yields nothing")

    asyncio.run(run())


def test_policies_are_played_at_regular_steps():
    stage, reports = evaluation(Staircase(), every=100)
    play(stage, 0, 90, 130, 190, 200, 250, 520, 590, 600)
    assert [report.policy.step for report in reports] == [130, 200, 520, 600]


def test_the_lowest_and_highest_return_and_the_episodes_length_in_decisions_are_reported():
    _, (report,) = played(Staircase(num_envs=3, height=2.0), episodes=3)
    assert (report.score.lowest, report.score.highest, report.score.length) == (2.0, 6.0, 2.0)
    assert report.score.deviation == pytest.approx(np.std([2.0, 4.0, 6.0]))


def test_returns_of_held_actions_are_undiscounted_too():
    group = RepeatingGroup(Staircase(num_envs=3, height=2.0), ActionRepeatSettings(steps=2, discount=0.5))
    _, (report,) = played(group, episodes=3)
    assert (report.score.lowest, report.score.highest, report.score.length) == (
        2.0,
        6.0,
        pytest.approx((1 + 1 + 2) / 3),
    )


def test_the_last_policy_is_played_at_the_end_if_it_was_not_before():
    stage, reports = evaluation(Staircase(), every=100)
    play(stage, 0, 110, 150, finish=True)
    assert [report.policy.step for report in reports] == [110, 150]
    play(stage, finish=True)
    assert len(reports) == 2


def test_an_untrained_policy_is_not_played_at_the_end():
    stage, reports = evaluation(Staircase())
    play(stage, 0, finish=True)
    assert not reports


def played(group, **options):
    stage, reports = evaluation(group, **options)
    play(stage, 100)
    return stage, reports


@pytest.mark.parametrize(("num_envs", "episodes", "mean"), [(2, 4, 1.5), (2, 8, 1.5), (4, 8, 2.5)])
def test_each_environment_gives_the_same_share_or_short_episodes_would_count_most(num_envs, episodes, mean):
    _, (report,) = played(Staircase(num_envs), episodes=episodes)
    assert (report.score.mean, report.score.episodes) == (mean, episodes)


class Shared(Staircase):
    """What was the agents' own is their groups'."""

    def result(self, over):
        steps = super().result(over).steps["Walker"]
        groups = {"group_ids": 1 + steps.agent_ids, "group_rewards": steps.rewards}
        return StepResult({"Walker": replace(steps, rewards=0 * steps.rewards, **groups)})


class Quitting(Staircase):
    """Instance 0 closes at the first step and does not come back."""

    gone = False

    def reset(self, seed=None):
        result = super().reset(seed)
        return self.without(result) if self.gone else result

    def step(self, actions):
        self._taken += 1
        result = self.without(self.result(self._taken > np.arange(self.num_envs)))
        closed, self.gone = result.closed if not self.gone else None, True
        return replace(result, closed=closed)

    def without(self, result):
        steps = result.steps["Walker"]
        left = steps.env_ids > 0
        ending = left[: steps.ended]
        kept = {name: getattr(steps, name)[left] for name in ("agent_ids", "env_ids", "episode_ids", "rewards")}
        flags = {name: getattr(steps, name)[ending] for name in ("terminated", "truncated")}
        observed = (steps.observations[0][left],)
        rows = AgentSteps(**kept, **flags, observations=observed, ended=int(ending.sum()))
        return StepResult({"Walker": rows}, closed=np.array([0], np.int32))


def test_the_others_play_the_episodes_of_a_closed_instance():
    stage, reports = evaluation(Quitting(num_envs=2), episodes=4)
    play(stage, 100, 200)
    assert [(report.score.episodes, report.score.length) for report in reports] == [(4, 2.0), (4, 2.0)]


def test_group_rewards_count_for_members():
    _, (report,) = played(Shared(2), episodes=4)
    assert report.score.mean == 1.5


def test_all_policies_meet_the_same_episodes():
    group = Staircase()
    stage, _ = evaluation(group)
    play(stage, 100, 200)
    assert len(set(group.seeds)) == 1
    assert len(group.seeds) == 2


def test_the_best_is_marked():
    group = Staircase(num_envs=1)
    stage, reports = evaluation(group, episodes=1)
    for step, height in enumerate([2.0, 5.0, 5.0, 3.0, 6.0], 1):
        group.height = height
        play(stage, step * 100)
    assert [report.best for report in reports] == [True, True, False, False, True]


def test_a_resumed_run_remembers_its_best():
    group = Staircase(num_envs=1, height=4.0)
    stage, reports = evaluation(group, episodes=1, best={"Walker": 5.0})
    play(stage, 100)
    group.height = 6.0
    play(stage, 200)
    assert [report.best for report in reports] == [False, True]


def test_agents_remember_within_their_episodes_and_no_longer():
    class Counting(Deterministic):
        """Remembers how often its agent decided, and checks it against what is observed."""

        memory_size, previous_action_size = 2, 1
        most: ClassVar = []

        def act(self, observations, masks, random, deterministic=False, recall=None):
            decision = super().act(observations, masks, random, deterministic)
            decided = observations[0][:, DECISION, None]
            assert np.array_equal(recall.memories, np.tile(decided, 2))
            self.most.append(decided.max())
            return Decision(decision.actions, decision.columns, Recall(recall.memories + 1, recall.previous_actions))

    class SameEpisode(CountingGroup):
        """Tells no other episode by its number: the ending row alone says that another one begins."""

        def steps_of(self, behavior_id, endings, decisions):
            steps = super().steps_of(behavior_id, endings, decisions)
            return replace(steps, episode_ids=np.zeros_like(steps.episode_ids))

    group = SameEpisode([Cast("Walker", agents=3, longest=4, newcomers=0.5)], num_envs=2)
    stage, _ = evaluation(group, episodes=20, make_policy=Counting)
    play(stage, 100, 200)
    assert max(Counting.most) == 3
