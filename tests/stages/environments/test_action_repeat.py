"""Held actions: against a plain loop over agents, and in real environments."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from environment_requests import group_of
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from headrace.config import ActionRepeatSettings, EnvironmentSettings
from headrace.queues.messages import ActionBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.environments.factory import RepeatingGroup, repeated
from headrace.stages.environments.protocol import AgentSteps, StepResult
from headrace.stages.errors import StageError

CHOICES = 3
SPEC = BehaviorSpec(
    "B", (ObservationSpec("tick", (1,), "int64"),), ActionSpec(1, (CHOICES,), masked=True), grouped=True
)


@dataclass
class Row:
    """What the environment says of an agent at a tick."""

    tick: int
    agent: int
    episode: int
    reward: float
    shared: float
    ends: bool = False
    mask: tuple[bool, ...] = (True,) * CHOICES


class Script:
    """Agents who come, wait, act and go at random, whatever is done; a record of the actions that it got."""

    def __init__(self, seed: int, agents: int, ticks: int) -> None:
        random = np.random.default_rng(seed)
        self.ticks = [self.rows_at(tick, random, agents) for tick in range(ticks)]
        self.num_envs = 2
        self.behavior_specs: Mapping[str, BehaviorSpec] = {"B": SPEC}
        self.got: list[tuple[int, int, float, int]] = []
        self.tick = 0

    def rows_at(self, tick: int, random: np.random.Generator, agents: int) -> list[Row]:
        if not tick:
            self.playing: dict[int, int] = {}
            self.episodes = [0] * agents
        endings, decisions = [], []
        for agent in random.permutation(agents).tolist():
            if agent in self.playing and random.random() < 0.1:
                own, shared = random.normal(size=2).tolist()
                endings.append(Row(tick, agent, self.playing.pop(agent), own, shared, ends=True))
            elif agent in self.playing and random.random() < 0.03:
                del self.playing[agent]  # begins anew without an ending
            first = agent not in self.playing and random.random() < 0.7
            if first:
                self.episodes[agent] += 1
                self.playing[agent] = self.episodes[agent]
            if agent in self.playing and (first or random.random() < 0.8):
                mask = random.random(CHOICES) < 0.8
                mask[random.integers(CHOICES)] = True
                own, shared = (0.0, 0.0) if first else random.normal(size=2).tolist()
                decisions.append(Row(tick, agent, self.playing[agent], own, shared, mask=tuple(mask.tolist())))
        return endings + decisions

    def reset(self, seed: int | None = None) -> StepResult:
        self.tick, self.got = 0, []
        return self.result()

    def step(self, actions: Any) -> StepResult:
        asked = [row for row in self.ticks[self.tick] if not row.ends]
        if self.ticks[self.tick]:
            for row, continuous, discrete in zip(asked, actions["B"].continuous, actions["B"].discrete, strict=True):
                self.got.append((row.tick, row.agent, float(continuous[0]), int(discrete[0])))
        self.tick += 1
        return self.result()

    def result(self) -> StepResult:
        rows = self.ticks[self.tick]
        if not rows:
            return StepResult({})
        ended = sum(row.ends for row in rows)
        steps = AgentSteps(
            agent_ids=np.array([row.agent for row in rows], np.int64),
            env_ids=np.array([row.agent % 2 for row in rows], np.int32),
            episode_ids=np.array([row.episode for row in rows], np.int64),
            observations=(np.array([[row.tick] for row in rows], np.int64),),
            rewards=np.array([row.reward for row in rows], np.float32),
            ended=ended,
            terminated=np.ones(ended, np.bool_),
            truncated=np.zeros(ended, np.bool_),
            action_masks=np.array([row.mask for row in rows[ended:]], np.bool_).reshape(len(rows) - ended, CHOICES),
            group_ids=np.ones(len(rows), np.int64),
            group_rewards=np.array([row.shared for row in rows], np.float32),
        )
        return StepResult({"B": steps})

    def close(self) -> None:
        pass


def choice_of(agent: int, tick: int, mask: Any, longest: int) -> tuple[float, int, int]:
    """What an agent does at a tick at which it is asked, and for how long: any rule will do that obeys its mask."""
    random = np.random.default_rng((agent, tick))
    return (
        float(np.float32(random.normal())),
        int(random.choice(np.flatnonzero(mask))),
        int(random.integers(longest)) + 1,
    )


@dataclass
class Hold:
    episode: int
    continuous: float = 0.0
    choice: int = 0
    left: int = 0
    frames: int = 0
    rewards: list[tuple[float, float]] = field(default_factory=list)


class PlainLoop:
    """The same as `RepeatingGroup`, agent by agent; `told` are the rows that it passes on, `given` the actions."""

    def __init__(self, script: Script, fixed: int | None, longest: int, discount: float) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.given: list[tuple[int, int, float, int]] = []
        holds: dict[int, Hold] = {}
        for rows in script.ticks:
            for row in rows:
                hold = holds.get(row.agent)
                if hold is None or hold.episode != row.episode:
                    if row.ends:
                        continue  # it never decided
                    hold = holds[row.agent] = Hold(row.episode)
                hold.rewards.append((row.reward, row.shared))
                if row.ends:
                    self.tell(row, hold, discount)
                    del holds[row.agent]
                    continue
                if not hold.left or not row.mask[hold.choice]:
                    self.tell(row, hold, discount)
                    hold.rewards.clear()
                    hold.frames = 0
                    hold.continuous, hold.choice, chosen = choice_of(row.agent, row.tick, row.mask, longest)
                    hold.left = fixed or chosen
                hold.left -= 1
                hold.frames += 1
                self.given.append((row.tick, row.agent, hold.continuous, hold.choice))

    def tell(self, row: Row, hold: Hold, discount: float) -> None:
        own, shared = (
            sum(discount**i * np.float32(rewards[which]) for i, rewards in enumerate(hold.rewards)) for which in (0, 1)
        )
        plain = [sum(np.float32(rewards[which]) for rewards in hold.rewards) for which in (0, 1)]
        self.told.append((row.tick, row.agent, row.episode, row.ends, hold.frames, own, shared, *plain))


async def played(script: Script, repeat: ActionRepeatSettings) -> list[tuple[Any, ...]]:
    """The rows that the group passes on until the script is at its end."""
    group = RepeatingGroup(script, repeat)
    longest = repeat.max or 1
    told: list[tuple[Any, ...]] = []
    result = await group.reset()
    while True:
        actions = {}
        for behavior_id, steps in result.steps.items():
            ticks = steps.observations[0][:, 0].tolist()
            plain = np.stack([steps.rewards, steps.group_rewards], 1)
            if steps.undiscounted is not None:
                plain = steps.undiscounted
            columns = (steps.agent_ids, steps.episode_ids, np.arange(len(ticks)) < steps.ended, steps.env_frames)
            told += zip(
                ticks, *(c.tolist() for c in (*columns, steps.rewards, steps.group_rewards, *plain.T)), strict=True
            )
            assert steps.action_masks.shape == (len(ticks) - steps.ended, CHOICES + (repeat.max or 0))
            assert steps.action_masks[:, CHOICES:].all()
            made = [
                choice_of(agent, tick, mask[:CHOICES], longest)
                for agent, tick, mask in zip(
                    steps.agent_ids[steps.ended :].tolist(), ticks[steps.ended :], steps.action_masks, strict=True
                )
            ]
            continuous = np.array([[each[0]] for each in made], np.float32).reshape(len(made), 1)
            discrete = np.array([[choice, steps - 1] for _, choice, steps in made], np.int32).reshape(len(made), 2)
            actions[behavior_id] = ActionBatch(continuous, discrete if repeat.max else discrete[:, :1])
        if script.tick >= len(script.ticks) - 9:  # so many steps may be made at once
            return told
        result = await group.step(actions)


@pytest.mark.lengthy
@given(
    seed=st.integers(0, 10**6),
    agents=st.integers(1, 6),
    repeat=st.one_of(
        st.builds(ActionRepeatSettings, steps=st.integers(1, 5), discount=st.sampled_from([1.0, 0.5])),
        st.builds(ActionRepeatSettings, max=st.integers(2, 6), discount=st.sampled_from([1.0, 0.9])),
    ),
)
@examples(25)
def test_held_actions_equal_a_plain_loop_over_agents(seed, agents, repeat):
    script = Script(seed, agents, ticks=40)
    expected = PlainLoop(script, repeat.steps, repeat.max or 1, repeat.discount)

    told = asyncio.run(played(script, repeat))

    until = max((row[0] for row in told), default=0)
    known = [row for row in told if row[4] or not row[3]]  # endings of agents that never decided say nothing
    wanted = [row for row in expected.told if row[0] <= until]
    assert [row[:5] for row in sorted(known)] == [row[:5] for row in sorted(wanted)]
    np.testing.assert_allclose(
        np.array([row[5:] for row in sorted(known)]), np.array([row[5:] for row in sorted(wanted)]), atol=1e-5
    )
    assert script.got == [given for given in expected.given if given[0] < script.tick]


# Real environments. ---------------------------------------------------------------------------------------------------


async def run_of(group: Any, decide: Any, ticks: int) -> list[tuple[str, AgentSteps]]:
    """What a group says in some ticks; `decide` gives the actions of a behaviour id's rows that ask for some."""
    result = await group.reset(3)
    found = [*result.steps.items()]
    for _ in range(ticks):
        actions = {}
        for behavior_id, steps in result.steps.items():
            branches = len(group.behavior_specs[behavior_id].actions.discrete_branches)
            discrete = np.array(decide(behavior_id, steps), np.int32).reshape(-1, branches)
            actions[behavior_id] = ActionBatch(np.zeros((len(discrete), 0), np.float32), discrete)
        result = await group.step(actions)
        found += result.steps.items()
    group.close()
    return found


def told(rows: list[tuple[str, AgentSteps]], agent: int = 0) -> list[tuple[Any, ...]]:
    """An agent's rows: (observation, reward, frames, whether it is an ending)."""
    found = []
    for _, steps in rows:
        for row in np.flatnonzero(steps.agent_ids == agent).tolist():
            seen = steps.observations[0][row].tolist()
            found.append((seen, float(steps.rewards[row]), int(steps.env_frames[row]), row < steps.ended))
    return found


def test_a_gymnasium_environment_is_stepped_as_often_as_the_actions_say_and_no_further_than_its_episode():
    choices, holds = [0, 1, 1], [3, 1, 4]
    numbers = itertools.count()

    def decide(behavior_id: str, steps: AgentSteps) -> list[list[int]]:
        number = next(numbers) % 3
        return [[choices[number], holds[number] - 1]]

    section = EnvironmentSettings(kind="gymnasium", id="CartPole-v1", action_repeat=ActionRepeatSettings(max=4))
    group = group_of(section, "Pole", 1)
    rows = asyncio.run(run_of(group, decide, 40))

    assert group.behavior_specs["Pole"].actions.branch_heads == ("branch_0", "step_mul")
    env = gymnasium.make("CartPole-v1")
    seen, _ = env.reset(seed=3)
    expected, over, number = [(seen.tolist(), 0.0, 0, False)], False, 0
    while not over:
        total, frames = 0.0, 0
        while frames < holds[number % 3] and not over:
            seen, reward, over, _, _ = env.step(choices[number % 3])
            total, frames = total + float(reward), frames + 1
        expected.append((seen.tolist(), total, frames, over))
        number += 1
    assert told(rows)[: len(expected)] == expected
    assert told(rows)[len(expected)][1:] == (0.0, 0, False), "then another episode begins"


def test_in_a_turn_based_game_an_action_is_held_for_the_agent_s_own_turns_until_it_is_forbidden():
    section = EnvironmentSettings(
        kind="pettingzoo", factory="small_zoo:Counting", options={"target": 9}, action_repeat={"max": 5}
    )
    add_two_for_long = lambda _, steps: [[1, 4]] * (len(steps.agent_ids) - steps.ended)  # noqa: E731

    rows = asyncio.run(run_of(group_of(section, "Count", 1), add_two_for_long, 2))

    # 2, 4, 6, 8, and then 2 is too much: whose turn it is has to be asked, with the choices of step_mul open as ever.
    asked = [steps for _, steps in rows if len(steps.agent_ids) == 1]
    assert [int(steps.observations[0][0, 0]) for steps in asked[:3]] == [0, 2, 8]
    assert asked[2].env_frames.tolist() == [2]
    assert asked[2].action_masks.tolist() == [[True, False] + [True] * 5]


def test_an_action_named_step_mul_is_refused_with_a_learned_repeat():
    spec = replace(SPEC, actions=ActionSpec(0, (2, 2), branch_names=("move", "step_mul")))
    with pytest.raises(StageError, match="already have a part named step_mul"):
        repeated(spec, ActionRepeatSettings(max=2))
    assert repeated(spec, ActionRepeatSettings(steps=2)).actions == spec.actions
    assert repeated(spec, ActionRepeatSettings(steps=2)).spaces == {"action_repeat": 2}
    with pytest.raises(StageError, match="already repeats actions"):
        repeated(replace(spec, action_repeat="fixed"), ActionRepeatSettings(steps=2))
