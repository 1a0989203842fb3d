"""The agent processor against a slow and obvious model of it, one Python object per agent and step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from headrace.queues.messages import StepBatch, TrajectoryBatch
from headrace.stages.agent import AgentProcessor

BEHAVIORS = ("Ball?team=0", "Ball?team=1", "Walker")
GROUPED = {"Walker"}
AGENTS, GROUPS, ENVS = 5, 2, 3
ROW = ("obs_0", "actions", "rewards", "group_rewards", "ticks")
"""What is compared of each step."""

# What happens to an agent of a group at a tick. Most ticks bring decisions only, as most do in life.
EVENTS = st.sampled_from(["decide"] * 6 + ["nothing"] * 3 + ["end", "end and restart", "restart silently", "restamp"])
TICKS = st.tuples(
    st.just("tick"),
    st.integers(0, len(BEHAVIORS) - 1),
    st.integers(0, GROUPS - 1),
    st.lists(EVENTS, min_size=AGENTS, max_size=AGENTS),
    st.integers(0, 2),  # games that end
)
FIXED_TICKS = st.tuples(st.just("tick"), st.just(0), st.just(0), st.just(["decide"] * AGENTS), st.just(0))
OTHERS = st.one_of(
    st.tuples(st.just("flush")),
    st.tuples(st.just("cut"), st.sampled_from(BEHAVIORS), st.integers(-1, 8)),
    st.tuples(st.just("close")),
    st.tuples(st.just("end_learning"), st.sampled_from(BEHAVIORS)),
    st.tuples(st.just("decide_again"), st.integers(0, len(BEHAVIORS) - 1), st.integers(0, GROUPS - 1)),
    st.tuples(st.just("drop"), st.sets(st.integers(0, GROUPS * ENVS - 1))),
)
OPERATIONS = st.lists(st.one_of(TICKS, TICKS, FIXED_TICKS, FIXED_TICKS, OTHERS), max_size=100)


@dataclass
class Trajectory:
    """Rows, and what is said of them as a whole."""

    rows: list[dict[str, Any]]
    whole: dict[str, Any]

    def key(self) -> tuple[Any, ...]:
        return (*self.whole["agent"], self.rows[0]["obs_0"])


@dataclass
class Agent:
    """An agent with an open decision."""

    env: int
    stamp: tuple[int, ...]
    """Agent, episode, generation, opponent, learning, group."""
    open: dict[str, Any]
    grouped: bool
    previous: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    episode_return: float = 0.0
    episode_steps: int = 0
    group_return: float = 0.0
    last_whole: dict[str, Any] = field(default_factory=dict)
    parameters: int = 0


@dataclass
class Table:
    """The model of one behaviour id."""

    horizon: int
    grouped: bool
    agents: dict[int, Agent] = field(default_factory=dict)
    closed: list[Trajectory] = field(default_factory=list)
    episodes: list[tuple[Any, ...]] = field(default_factory=list)
    games: list[int] = field(default_factory=list)
    emitted: int = 0
    tick: int = 0
    parted: set[int] = field(default_factory=set)
    """Groups of which a trajectory was closed since the mates were seen to."""

    def complete(self, agent: Agent, reward: float, group_reward: float) -> None:
        agent.rows.append(agent.open | {"rewards": reward, "group_rewards": group_reward})
        agent.episode_return += reward
        agent.group_return += group_reward
        agent.episode_steps += 1

    def close(self, agent: Agent, next_obs: Any, *, terminated: bool = False, truncated: bool = False) -> None:
        if not agent.rows:
            return
        length = len(agent.rows)
        whole = {
            "agent": agent.stamp,
            "next": next_obs,
            "terminated": terminated,
            "truncated": truncated,
            "versions": (agent.rows[0]["version"], agent.rows[-1]["version"]),
            "credits": length if agent.stamp[4] else 0,
            "previous": agent.previous,
            "next_tick": self.tick if self.grouped else None,
            "group_left": True if self.grouped else None,
        }
        self.parted.add(agent.stamp[5])
        rows = [{name: row[name] for name in ROW} for row in agent.rows]
        self.closed.append(Trajectory(rows, whole))
        agent.last_whole = whole
        agent.previous = agent.rows[-1]["actions"]
        agent.rows = []

    def close_mates(self) -> None:
        for agent in self.agents.values():
            if agent.stamp[5] and agent.stamp[5] in self.parted:
                self.close(agent, agent.open["obs_0"])
        self.parted.clear()

    def end(
        self, agent_id: int, rewards: tuple[float, float], obs: Any, terminated: bool, parameters: int
    ) -> list[Agent]:
        agent = self.agents.pop(agent_id, None)
        if agent is None:
            return []
        self.complete(agent, *rewards)
        self.close(agent, obs, terminated=terminated, truncated=not terminated)
        agent.parameters = parameters
        return [agent]

    def tell_ended(self, ended: list[Agent]) -> None:
        """The episodes that ended at a tick, before anybody decides."""
        for agent in ended:
            mates = [mate for mate in ended if mate.stamp[5] == agent.stamp[5]]
            left = any(other.stamp[5] == agent.stamp[5] for other in self.agents.values())
            longest = max(mates, key=lambda mate: mate.episode_steps)
            over = agent.stamp[5] > 0 and not left and agent is longest
            if self.grouped:
                agent.last_whole["group_left"] = left and agent.stamp[5] > 0
            row = (agent.stamp[0], agent.episode_return, agent.episode_steps, agent.stamp[4], agent.parameters)
            self.episodes.append((*row, agent.group_return, over) if agent.grouped else row)

    def decide(self, env: int, stamp: tuple[int, ...], rewards: tuple[float, float], decision: dict[str, Any]) -> None:
        agent = self.agents.get(stamp[0])
        if agent is not None and agent.stamp[1] != stamp[1]:
            self.close(agent, agent.open["obs_0"], truncated=True)
            agent = None
        if agent is None:
            self.agents[stamp[0]] = Agent(env, stamp, decision, self.grouped)
            return
        self.complete(agent, *rewards)
        if len(agent.rows) == self.horizon or agent.stamp != stamp:
            self.close(agent, decision["obs_0"])
        agent.stamp, agent.open = stamp, decision

    def cut(self, version: int | None = None) -> None:
        for agent in self.agents.values():
            if version is None or (agent.rows and agent.rows[0]["version"] <= version):
                self.close(agent, agent.open["obs_0"])
        self.close_mates()

    def end_learning(self) -> None:
        learners = [agent for agent in self.agents.values() if agent.stamp[4]]
        for agent in learners:
            self.close(agent, agent.open["obs_0"])
        self.close_mates()
        for agent in learners:
            agent.stamp = (*agent.stamp[:4], 0, agent.stamp[5])

    def pending(self) -> int:
        half_made = sum(len(agent.rows) for agent in self.agents.values() if agent.stamp[4])
        return half_made + sum(trajectory.whole["credits"] for trajectory in self.closed)


class World:
    """Agents that do what the events say, told to the processor and to the model."""

    def __init__(self, horizon: int, min_rows: int) -> None:
        self.processor = AgentProcessor({"Ball": horizon, "Walker": horizon + 1}, source=3, min_rows=min_rows)
        self.min_rows = min_rows
        self.tables = {b: Table(horizon + (b == "Walker"), b in GROUPED) for b in BEHAVIORS}
        self.episodes: Counter[int] = Counter()
        self.generations: Counter[int] = Counter()
        self.serial = self.ticks = 0
        self.last_decisions: dict[tuple[int, int], list[dict[str, Any]]] = {}
        self.random = np.random.default_rng(5)

    def next_serial(self) -> int:
        self.serial += 1
        return self.serial

    def tick(self, behavior: int, group: int, events: list[str], games: int) -> None:
        table = self.tables[BEHAVIORS[behavior]]
        endings, decisions = [], []
        self.ticks += 1
        for i, event in enumerate(events):
            # Ids in no order, of any size.
            agent = (behavior * GROUPS + group) * 100 + (i * 7919) % 31 - (2**40 if i == 2 else 0)
            row = {"agent": agent, "number": i, "env": group * ENVS + i % ENVS, "old_episode": self.episodes[agent]}
            if event.startswith("end"):
                endings.append(row | {"terminated": self.random.random() < 0.5})
            self.episodes[agent] += event in ("end", "end and restart", "restart silently")
            self.generations[agent] += event == "restamp"
            if event not in ("nothing", "end"):
                decisions.append(row | {"new_episode": self.episodes[agent]})
        step = self.step_batch(BEHAVIORS[behavior], group, endings, decisions, games)
        self.last_decisions[behavior, group] = decisions
        table.games += step.games.get("game_generation", np.empty(0)).tolist()
        self.tell_model(table, step)
        batches = list(self.processor.process(step))
        for array in (
            *step.observations,
            *step.decisions.values(),
            step.agent_ids,
            step.rewards,
            *(a for a in (step.parameters, step.group_ids, step.group_rewards) if a is not None),
            *step.games.values(),
        ):
            array.fill(99)  # the environment uses its arrays again
        waiting = sum(len(trajectory.rows) for trajectory in table.closed)
        assert bool(batches) == (waiting >= self.min_rows)
        if batches:
            self.check(batches, [BEHAVIORS[behavior]])

    def decide_again(self, behavior: int, group: int) -> None:
        """Newer policies take the open decisions of the group's last tick once more."""
        table = self.tables[BEHAVIORS[behavior]]
        rows = self.last_decisions.get((behavior, group), [])
        step = self.step_batch(BEHAVIORS[behavior], group, [], rows, 0)
        for agent_id, action in zip(step.agent_ids.tolist(), step.decisions["discrete_actions"][:, 0], strict=True):
            if agent_id in table.agents:
                table.agents[agent_id].open |= {
                    "actions": int(action) // 3,
                    "version": int(step.policy_versions[0]),
                }
        self.processor.replace_decisions(step)

    def step_batch(
        self,
        behavior_id: str,
        group: int,
        endings: list[dict[str, Any]],
        decisions: list[dict[str, Any]],
        games: int,
    ) -> StepBatch:
        rows, d = [*endings, *decisions], len(decisions)
        serials = np.array([self.next_serial() for _ in rows])
        agents = np.array([row["agent"] for row in rows], np.int64)
        generations = np.array([self.generations[row["agent"]] for row in decisions], np.int32)
        learning = (generations + agents[len(endings) :]) % 3 > 0
        flags = np.array([row["terminated"] for row in endings], np.bool_)
        both = self.random.random(len(endings)) < 0.3
        chosen = serials[len(endings) :]
        of_groups: dict[str, Any] = {}
        if behavior_id in GROUPED:
            # The first agent is in no group; who is stamped anew changes over to the other one.
            ids = [
                10 * (group + 1) + (row["number"] + self.generations[row["agent"]]) % 2 if row["number"] else 0
                for row in rows
            ]
            rewards = self.random.integers(-4, 5, len(rows)).astype(np.float32) / 4
            of_groups = {"group_ids": np.array(ids, np.int64), "group_rewards": rewards}
        game_ids = np.array([self.next_serial() for _ in range(games)], np.int32)
        return StepBatch(
            behavior_id=behavior_id,
            agent_ids=agents,
            env_ids=np.array([row["env"] for row in rows], np.int32),
            episode_ids=np.array([row.get("new_episode", row["old_episode"]) for row in rows], np.int64),
            observations=(
                np.repeat(serials, 2).reshape(-1, 2).astype(np.float32),
                np.asfortranarray(np.repeat(serials % 251, 6).reshape(-1, 3, 2).astype(np.uint8)),
            ),
            rewards=self.random.integers(-4, 5, len(rows)).astype(np.float32) / np.float32(4),
            ended=len(endings),
            terminated=flags,
            truncated=~flags | both,
            decisions={
                "continuous_actions": np.stack((chosen, -chosen), 1).astype(np.float32),
                "discrete_actions": (chosen * 3).reshape(-1, 1).astype(np.int32),
                "log_probs": (chosen * 5).reshape(-1, 1).astype(np.float32),
                "somebody's matrix": np.repeat(chosen, 4).reshape(-1, 2, 2).astype(np.float64),
                "somebody's number": (chosen % 1000).astype(np.int16),
            },
            policy_versions=np.full(d, self.serial // 20, np.int64),
            generations=generations,
            learning=learning,
            opponents=generations - 1,
            games={"game_generation": game_ids, "game_outcome": game_ids / np.float32(2)} if games else {},
            tick=self.ticks,
            **of_groups,
            parameters=serials[: len(endings)].astype(np.int32) if behavior_id != "Walker" else None,
        )

    def tell_model(self, table: Table, step: StepBatch) -> None:
        serials = [int(obs) for obs in step.observations[0][:, 0]]
        count = len(serials)
        if count:
            table.tick = step.tick
        group_ids = [0] * count if step.group_ids is None else step.group_ids.tolist()
        of_groups = [0.0] * count if step.group_rewards is None else step.group_rewards.tolist()
        rewards = list(zip(step.rewards.tolist(), of_groups, strict=True))
        ended = []
        for i in range(step.ended):
            parameters = 0 if step.parameters is None else int(step.parameters[i])
            terminated = bool(step.terminated[i])
            ended += table.end(int(step.agent_ids[i]), rewards[i], serials[i], terminated, parameters)
        table.tell_ended(ended)
        for j, serial in enumerate(serials[step.ended :]):
            i = j + step.ended
            stamp = (
                int(step.agent_ids[i]),
                int(step.episode_ids[i]),
                int(step.generations[j]),
                int(step.opponents[j]),
                int(step.learning[j]),
                group_ids[i],
            )
            tick = step.tick if table.grouped else 0
            decision = {"obs_0": serial, "actions": serial, "version": int(step.policy_versions[j]), "ticks": tick}
            table.decide(int(step.env_ids[i]), stamp, rewards[i], decision)
        table.close_mates()

    def flush(self) -> None:
        for behavior_id in BEHAVIORS:
            self.tables[behavior_id].cut()
        self.check(self.processor.flush(), list(BEHAVIORS))

    def cut(self, behavior_id: str, version: int) -> None:
        self.tables[behavior_id].cut(version)
        self.check(self.processor.cut_older_than(behavior_id, version), [behavior_id])

    def end_learning(self, behavior_id: str) -> None:
        self.tables[behavior_id].end_learning()
        self.processor.end_learning(behavior_id)

    def close(self) -> None:
        for table in self.tables.values():
            for agent in table.agents.values():
                table.close(agent, agent.open["obs_0"], truncated=True)
            table.agents.clear()
            table.parted.clear()
        self.check(self.processor.close_all(), list(BEHAVIORS))

    def drop(self, envs: set[int]) -> None:
        lost = 0
        for table in self.tables.values():
            gone = {k: a for k, a in table.agents.items() if a.env in envs}
            lost += sum(len(agent.rows) for agent in gone.values() if agent.stamp[4])
            table.agents = {k: a for k, a in table.agents.items() if k not in gone}
        assert self.processor.drop_environments(sorted(envs)) == lost

    def check(self, batches: list[TrajectoryBatch], behavior_ids: list[str]) -> None:
        """The batches are all that the model has closed of these behaviour ids, which is then forgotten."""
        expected = {b: self.tables[b] for b in behavior_ids if self.tables[b].closed or self.tables[b].games}
        assert sorted(batch.behavior_id for batch in batches) == sorted(expected)
        for batch in batches:
            table = expected[batch.behavior_id]
            assert batch.source == 3
            trajectories = sorted(table.closed, key=Trajectory.key)
            assert sorted(unpacked(batch), key=Trajectory.key) == trajectories
            episodes = zip(*(column.tolist() for column in batch.episodes.values()), strict=True)
            assert sorted(episodes) == sorted(table.episodes)
            assert batch.games.get("game_generation", np.empty(0)).tolist() == table.games
            table.emitted += batch.credits
            table.closed, table.episodes, table.games = [], [], []

    def check_counters(self) -> None:
        for name in ("Ball", "Walker", "Unknown"):
            tables = [table for b, table in self.tables.items() if b.partition("?")[0] == name]
            assert self.processor.used(name) == sum(table.emitted + table.pending() for table in tables)
            assert self.processor.emitted(name) == sum(table.emitted for table in tables)
            assert self.processor.open_agents(name) == sum(len(table.agents) for table in tables)


def unpacked(batch: TrajectoryBatch) -> list[Trajectory]:
    """The batch as the model's trajectories; all columns that are made from one serial number must agree."""
    rows, whole = batch.rows, batch.trajectories
    serials = rows["obs_0"][:, 0].astype(np.int64)
    acts = rows["continuous_actions"][:, 0].astype(np.int64)
    assert (rows["obs_0"] == serials[:, None]).all()
    assert (rows["obs_1"] == (serials % 251)[:, None, None]).all()
    assert (rows["continuous_actions"] == np.stack((acts, -acts), 1)).all()
    assert (rows["discrete_actions"] == acts[:, None] * 3).all()
    assert (rows["log_probs"] == acts[:, None] * 5).all()
    assert (rows["somebody's matrix"] == acts[:, None, None]).all()
    assert (rows["somebody's number"] == acts % 1000).all()
    following = whole["next_obs_0"][:, 0].astype(np.int64)
    assert (whole["next_obs_0"] == following[:, None]).all()
    assert (whole["next_obs_1"] == (following % 251)[:, None, None]).all()
    before = whole["previous_continuous_actions"][:, 0].astype(np.int64)
    assert (whole["previous_continuous_actions"] == np.stack((before, -before), 1)).all()
    assert (whole["previous_discrete_actions"] == before[:, None] * 3).all()
    stamps = ["agent_ids", "episode_ids", "generation", "opponent", "learning"]
    grouped = batch.behavior_id in GROUPED
    assert {"group_rewards", "ticks"} & rows.keys() == ({"group_rewards", "ticks"} if grouped else set())
    assert {"group_ids", "next_ticks", "group_left"} <= whole.keys() or not grouped
    nothing = np.zeros(len(serials), np.float32)
    of_groups, ticks = rows.get("group_rewards", nothing), rows.get("ticks", nothing)
    trajectories, end = [], 0
    for k, length in enumerate(batch.lengths.tolist()):
        start, end = end, end + length
        steps = [
            {
                "obs_0": int(serials[i]),
                "actions": int(acts[i]),
                "rewards": float(rows["rewards"][i]),
                "group_rewards": float(of_groups[i]),
                "ticks": int(ticks[i]),
            }
            for i in range(start, end)
        ]
        trajectories.append(
            Trajectory(
                steps,
                {
                    "agent": (*(int(whole[name][k]) for name in stamps), int(whole["group_ids"][k]) if grouped else 0),
                    "next": int(following[k]),
                    "terminated": bool(whole["terminated"][k]),
                    "truncated": bool(whole["truncated"][k]),
                    "versions": (int(whole["first_version"][k]), int(whole["last_version"][k])),
                    "credits": int(whole["credits"][k]),
                    "previous": int(before[k]),
                    "next_tick": int(whole["next_ticks"][k]) if grouped else None,
                    "group_left": bool(whole["group_left"][k]) if grouped else None,
                },
            )
        )
    return trajectories


def play(world: World, operations: Iterable[tuple[Any, ...]]) -> None:
    """Do everything in the world, comparing with the model at each step, and finish."""
    for name, *arguments in operations:
        getattr(world, name)(*arguments)
        world.check_counters()
    for table in world.tables.values():
        table.cut()
    world.check(list(world.processor.finish()), list(BEHAVIORS))
    world.check_counters()


@pytest.mark.lengthy
@examples(30)
@given(operations=OPERATIONS, horizon=st.integers(1, 6), min_rows=st.sampled_from([1, 1, 4, 30]))
def test_random_operations_lose_double_and_change_no_step(
    operations: list[tuple[Any, ...]], horizon: int, min_rows: int
) -> None:
    play(World(horizon, min_rows), operations)


@pytest.mark.lengthy
@pytest.mark.parametrize(("horizon", "min_rows"), [(3, 1), (5, 50), (200, 1)])
def test_a_long_run_loses_doubles_and_changes_no_step(horizon: int, min_rows: int) -> None:
    random = Random(horizon)
    common = ["decide"] * 40 + ["nothing"] * 10 + ["end", "end and restart"]

    def operation() -> tuple[Any, ...]:
        draw = random.random()
        if draw < 0.01:
            return ("flush",)
        if draw < 0.03:
            return ("cut", random.choice(BEHAVIORS), random.randrange(200))
        if draw < 0.032:
            return ("end_learning", random.choice(BEHAVIORS))
        if draw < 0.037:
            return ("drop", {random.randrange(GROUPS * ENVS)})
        events = random.choices(common, k=AGENTS) if draw < 0.5 else ["decide"] * AGENTS
        return ("tick", random.randrange(len(BEHAVIORS)), random.randrange(GROUPS), events, 0)

    play(World(horizon, min_rows), (operation() for _ in range(700)))
