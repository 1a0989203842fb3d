"""Small real counterparts of what users bring: environments that count, policies that echo, trainers that remember.

They check what they are given. An agent's observation says who it is and which decision it asks for, its policy
answers with an action that only this question has, and the reward tells which decision it is for: whatever is lost,
doubled, swapped or written over on the way shows, in `check_trajectories` at the latest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headrace.queues.messages import ActionBatch, PolicyUpdate, TrajectoryBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec, behavior_name, behavior_team
from headrace.stages.environments.protocol import AgentSteps, GameResults, StepResult
from headrace.stages.errors import EnvironmentEnded
from headrace.stages.policy.protocol import Decision, Recall
from headrace.stages.trainer.protocol import Trainer

AGENT, EPISODE, DECISION, TICK = range(4)
"""Columns of a counting agent's observation: its id in the group, its episode, number of the decision, the tick."""

SPOILT = -7


def counting_spec(behavior_id: str, masked: bool = False) -> BehaviorSpec:
    return BehaviorSpec(
        behavior_id, (ObservationSpec("who", (4,), "int64"),), ActionSpec(0, (2,) if masked else (1,), masked)
    )


def answer_to(observations: np.ndarray) -> np.ndarray:
    """The action [d] that answers observations [d, 4]."""
    return ((observations[:, AGENT] * 131 + observations[:, EPISODE] * 31 + observations[:, DECISION]) % 9973).astype(
        np.int32
    )


def reward_for(agent: Any, episode: Any, decision: Any) -> Any:
    """What an agent gets for a decision: told with its next row."""
    return (agent * 7 + episode * 3 + decision) % 101 + 1.0


def policy_update(behavior_id: str, version: int, step: int = 0, snapshot: int = -1) -> PolicyUpdate:
    return PolicyUpdate(behavior_id, version, np.array([version], np.float32), (("version", (1,)),), step, snapshot)


@dataclass(frozen=True)
class Cast:
    """The agents of one behaviour id in each instance."""

    behavior_id: str
    agents: int = 1
    period: int = 1
    """They decide at every so many ticks."""
    shortest: int = 1
    longest: int = 5
    """Decisions of an episode, at least and at most (not for games)."""
    gap: int = 0
    """Ticks after an episode in which the agent is not there, at most."""
    newcomers: float = 0.0
    """How often an agent that ends comes back as another one."""
    joins_at: int = 0
    """The tick at which the behaviour is first seen."""
    masked: bool = False


@dataclass
class CountingAgent:
    number: int
    env: int
    cast: Cast
    born: int
    """The tick of its episode's first decision."""
    length: int
    episode: int = 0
    decided: int = 0


@dataclass
class Counters:
    """What goes on rising over the groups that replace each other in one actor."""

    born: int = 0
    episodes: int = 0
    tick: int = 0


class CountingGroup:
    """An environment group whose agents count their decisions.

    Args:
        casts: who is there.
        num_envs: instances.
        game_length: longest game in ticks; all agents of an instance end and start with its games. 0: no games, each
            agent has episodes of its own.
        delay_s: gives how long a step takes, in seconds; None: `step` and `reset` are not async.
        breaks_at: ticks at which `step` raises; each is taken out when it does.
        loses_at: instances that the group begins anew by itself, by tick.
        ends_at: the tick at which it comes to its end in order; -1 for never.
        late: whether behaviours are known only from the first reset on.
        counters: where to count on; those of the group that this one replaces.
    """

    def __init__(
        self,
        casts: Sequence[Cast],
        num_envs: int = 1,
        game_length: int = 0,
        delay_s: Callable[[], float] | None = None,
        breaks_at: set[int] | None = None,
        loses_at: Mapping[int, Sequence[int]] | None = None,
        ends_at: int = -1,
        late: bool = False,
        counters: Counters | None = None,
    ) -> None:
        self.num_envs = num_envs
        self._specs: dict[str, BehaviorSpec] = {}
        self.behavior_specs: Mapping[str, BehaviorSpec] = self._specs
        self.closed = 0
        self.counters = counters or Counters()
        self.seeds: list[int | None] = []
        self.results: list[GameResults] = []
        """Of each tick at which games ended."""
        self.told = [0]
        """After each tick, how many decisions' rewards have been told."""
        self._casts = casts
        self._game_length = game_length
        self._delay_s = delay_s
        self._breaks_at = breaks_at if breaks_at is not None else set()
        self._loses_at = loses_at or {}
        self._ends_at = ends_at
        self._random = np.random.default_rng(0)
        self._agents: list[CountingAgent] = []
        self._game_ends: list[int] = []
        self._asked: dict[str, np.ndarray] = {}
        self._given: list[np.ndarray] = []
        if not late:
            self._announce()

    @property
    def tick(self) -> int:
        return self.counters.tick

    def reset(self, seed: int | None = None) -> StepResult | Awaitable[StepResult]:
        assert not self.closed, "reset after close"
        self.seeds.append(seed)
        self._random = np.random.default_rng(seed)
        self._announce()
        self._agents = [
            self.newborn(cast, env, max(self.tick, cast.joins_at))
            for cast in self._casts
            for env in range(self.num_envs)
            for _ in range(cast.agents)
        ]
        self._game_ends = [self._next_game_end() for _ in range(self.num_envs)]
        return self._after(self._observe(), lambda: 0.0)

    def step(self, actions: Mapping[str, ActionBatch]) -> StepResult | Awaitable[StepResult]:
        assert not self.closed, "step after close"
        assert self._agents, "step before reset"
        self.check(actions)
        self.counters.tick += 1
        if self.tick in self._breaks_at:
            self._breaks_at.remove(self.tick)
            raise RuntimeError(f"the simulator crashed at tick {self.tick}")
        if self.tick == self._ends_at:
            raise EnvironmentEnded("the simulator was switched off")
        self._announce()
        old, self._given = self._given, []
        lost = self._loses_at.get(self.tick)
        if lost is not None:
            self._lose(lost)
        result = replace(self._observe(), lost=None if lost is None else np.array(lost, np.int32))
        for array in old:
            array.fill(SPOILT)  # allowed from now on: a view that was kept shows
        return self._after(result, self._delay_s)

    def close(self) -> Awaitable[None] | None:
        self.closed += 1
        return None

    # What a test may change, in a class of its own. -------------------------------------------------------------------

    def spec_of(self, cast: Cast) -> BehaviorSpec:
        return counting_spec(cast.behavior_id, cast.masked)

    def newborn(self, cast: Cast, env: int, born: int) -> CountingAgent:
        """Return an agent at the start of an episode whose first decision is at the tick `born`."""
        counters = self.counters
        counters.born += 1
        counters.episodes += 1
        return CountingAgent(counters.born, env, cast, born, self._length(cast), counters.episodes)

    def check(self, actions: Mapping[str, ActionBatch]) -> None:
        for behavior_id, asked in self._asked.items():
            assert behavior_id in actions or not len(asked), f"nobody decided for {behavior_id}"
            if len(asked):
                discrete = actions[behavior_id].discrete
                assert discrete.dtype == np.int32
                assert discrete.shape == (len(asked), 1)
                assert np.array_equal(discrete[:, 0], answer_to(asked)), (
                    f"{behavior_id}: actions are not for these agents"
                )

    def steps_of(
        self, behavior_id: str, endings: list[tuple[Any, ...]], decisions: list[tuple[Any, ...]]
    ) -> AgentSteps:
        rows = [*endings, *decisions]
        numbers, envs, episodes, decided, rewards = (list(column) for column in zip(*rows, strict=True))
        observations = np.array([numbers, episodes, decided, [self.tick] * len(rows)], np.int64).T.copy()
        terminated = self._random.random(len(endings)) < 0.5
        masks = None
        if self.behavior_specs[behavior_id].actions.masked:
            masks = np.array([[True, False]] * len(decisions), np.bool_)
        steps = AgentSteps(
            agent_ids=np.array(numbers, np.int64),
            env_ids=np.array(envs, np.int32),
            episode_ids=np.array(episodes, np.int64),
            observations=(observations,),
            rewards=np.array(rewards, np.float32),
            ended=len(endings),
            terminated=terminated,
            truncated=~terminated | (self._random.random(len(endings)) < 0.3),
            action_masks=masks,
        )
        self._given += [steps.agent_ids, steps.env_ids, steps.episode_ids, observations, steps.rewards, terminated]
        return steps

    def finish_games(self, over: list[int]) -> GameResults | None:
        if not over:
            return None
        for env in over:
            self._game_ends[env] = self._next_game_end()
        first = self._random.choice([0.0, 0.5, 1.0], len(over))
        teams = 1 + max(behavior_team(cast.behavior_id) for cast in self._casts)
        outcomes = np.stack([first, *[1 - first] * max(1, teams - 1)], 1).astype(np.float32)
        self.results.append(GameResults(np.array(over, np.int32), outcomes.copy()))
        return GameResults(np.array(over, np.int32), outcomes)

    # ------------------------------------------------------------------------------------------------------------------

    def _after(self, result: StepResult, delay_s: Callable[[], float] | None) -> StepResult | Awaitable[StepResult]:
        if self._delay_s is None or delay_s is None:
            return result

        async def wait() -> StepResult:
            await asyncio.sleep(delay_s())
            return result

        return wait()

    def _announce(self) -> None:
        for cast in self._casts:
            if cast.joins_at <= self.tick and cast.behavior_id not in self.behavior_specs:
                self._specs[cast.behavior_id] = self.spec_of(cast)

    def _lose(self, env_ids: Sequence[int]) -> None:
        """All agents of these instances begin another episode, without an ending."""
        for i, agent in enumerate(self._agents):
            if agent.env in env_ids:
                self._agents[i] = self.newborn(agent.cast, agent.env, self.tick)
                self._agents[i].number = agent.number

    def _length(self, cast: Cast) -> int:
        return int(self._random.integers(cast.shortest, cast.longest + 1))

    def _next_game_end(self) -> int:
        return self.tick + 1 + int(self._random.integers(self._game_length)) if self._game_length else -1

    def _observe(self) -> StepResult:
        """The rows of this tick; agents live on by it."""
        over = {env for env, end in enumerate(self._game_ends) if end == self.tick}
        endings: dict[str, list[tuple[Any, ...]]] = {}
        decisions: dict[str, list[tuple[Any, ...]]] = {}
        for i, agent in enumerate(self._agents):
            if self._ends(agent, over):
                endings.setdefault(agent.cast.behavior_id, []).append(self._row(agent))
                agent = self._agents[i] = self._successor(agent, bool(over))
            if agent.born <= self.tick and (self.tick - agent.born) % agent.cast.period == 0:
                decisions.setdefault(agent.cast.behavior_id, []).append(self._row(agent))
                agent.decided += 1
        self.told.append(
            self.told[-1] + sum(row[3] > 0 for rows in (*endings.values(), *decisions.values()) for row in rows)
        )
        steps = {i: self.steps_of(i, endings.get(i, []), decisions.get(i, [])) for i in {**endings, **decisions}}
        self._asked = {i: s.observations[0][s.ended :].copy() for i, s in steps.items()}
        return StepResult(steps, self.finish_games(sorted(over)))

    def _ends(self, agent: CountingAgent, over: set[int]) -> bool:
        if not agent.decided:
            return False
        if self._game_length:
            return agent.env in over
        return agent.decided >= agent.length and (self.tick - agent.born) % agent.cast.period == 0

    def _successor(self, agent: CountingAgent, game: bool) -> CountingAgent:
        cast = agent.cast
        born = self.tick if game else self.tick + int(self._random.integers(cast.gap + 1))
        new = self.newborn(cast, agent.env, born)
        if self._random.random() >= cast.newcomers:
            new.number = agent.number
        return new

    def _row(self, agent: CountingAgent) -> tuple[Any, ...]:
        reward = reward_for(agent.number, agent.episode, agent.decided - 1) if agent.decided else 0.0
        return agent.number, agent.env, agent.episode, agent.decided, reward


def at_once(result: StepResult | Awaitable[StepResult]) -> StepResult:
    """Return the result of a group whose `reset` and `step` are not async."""
    assert isinstance(result, StepResult)
    return result


class FakePolicy:
    """The rest of an `ActingPolicy` without memory and without weights."""

    memory_size = previous_action_size = 0

    def load(self, update: PolicyUpdate) -> None:
        pass

    def act(
        self,
        observations: Any,
        masks: Any,
        random: np.random.Generator,
        deterministic: bool = False,
        recall: Recall | None = None,
    ) -> Decision:
        raise AssertionError("no decision is expected of it")


class EchoPolicy:
    """A policy whose weights are its version, and whose actions answer the agents' observations.

    It writes into each trajectory which version and snapshot really acted, beside the columns that are asked of it.
    """

    memory_size = previous_action_size = 0

    def __init__(self, spec: BehaviorSpec) -> None:
        self.spec = spec
        self.loaded: PolicyUpdate | None = None
        self.decided = 0

    def load(self, update: PolicyUpdate) -> None:
        assert behavior_name(update.behavior_id) == self.spec.name, "a league's policy goes to all teams"
        self.loaded = replace(update, weights=update.weights.copy())

    def act(
        self,
        observations: Any,
        masks: Any,
        random: np.random.Generator,
        deterministic: bool = False,
        recall: Any = None,
    ) -> Decision:
        assert recall is None, "a policy without memory is given none"
        assert self.loaded is not None, f"{self.spec.behavior_id} acts before it has weights"
        (who,) = observations
        assert who.dtype == np.int64
        assert who.shape == (len(who), 4)
        assert not (who == SPOILT).any(), "acting on observations that the environment has written over"
        if self.spec.actions.masked:
            assert masks.shape == (len(who), self.spec.actions.mask_size)
        else:
            assert masks is None
        self.decided += len(who)
        version = self.loaded.version
        assert int(self.loaded.tensors()["version"][0]) <= version, "an update that was lost counts, too"
        answers = answer_to(who)[:, None]
        chance = np.zeros(len(who)) if deterministic else random.random(len(who))
        columns = {
            "discrete_actions": answers,
            "log_probs": chance[:, None].astype(np.float32),
            "acted_version": np.full(len(who), version, np.int64),
            "acted_snapshot": np.full(len(who), self.loaded.snapshot, np.int32),
        }
        return Decision(ActionBatch(np.empty((len(who), 0), np.float32), answers.copy()), columns)


def check_trajectories(batch: TrajectoryBatch, first_agent_id: int = 0) -> None:
    """Whatever a counting group and an echo policy made must have come through whole."""
    rows, whole = batch.rows, batch.trajectories
    who, ends = rows["obs_0"], np.cumsum(batch.lengths)
    starts = ends - batch.lengths
    assert (batch.lengths > 0).all()
    owner = np.repeat(np.arange(batch.num_trajectories), batch.lengths)
    assert np.array_equal(who[:, AGENT] + first_agent_id, whole["agent_ids"][owner])
    assert np.array_equal(who[:, EPISODE], whole["episode_ids"][owner])
    within = np.arange(batch.num_rows) - starts[owner]
    assert np.array_equal(who[:, DECISION], who[starts, DECISION][owner] + within), "steps are missing or out of order"
    assert np.array_equal(whole["next_obs_0"][:, DECISION], who[ends - 1, DECISION] + 1)
    assert np.array_equal(whole["next_obs_0"][:, AGENT], who[starts, AGENT])
    assert np.array_equal(rows["discrete_actions"][:, 0], answer_to(who))
    assert np.array_equal(
        rows["rewards"], reward_for(who[:, AGENT], who[:, EPISODE], who[:, DECISION]).astype(np.float32)
    )
    assert np.array_equal(whole["first_version"], rows["acted_version"][starts])
    assert np.array_equal(whole["last_version"], rows["acted_version"][ends - 1])
    assert np.array_equal(whole["credits"], np.where(whole["learning"], batch.lengths, 0))
    assert not (whole["terminated"] & whole["truncated"]).any()


class RememberingTrainer(Trainer):
    """A trainer that learns nothing and keeps everything.

    Args:
        behavior: the behaviour name.
        rows_per_update: rows at which it learns.
        uses_all: it uses up all rows that it holds, as SAC does; else exactly `rows_per_update`, as PPO does.

    Attributes:
        held: batches added and not learned from yet (the first of them perhaps in part).
        updates: for each update, how many rows it used.
    """

    def __init__(self, behavior: str = "Walker", rows_per_update: int = 4, uses_all: bool = True) -> None:
        self.batches: list[TrajectoryBatch] = []
        self.held = 0
        self.updates: list[int] = []
        self._behavior = behavior
        self._rows_per_update = rows_per_update
        self._uses_all = uses_all
        self._step = 0

    @property
    def step(self) -> int:
        return self._step

    @property
    def version(self) -> int:
        return len(self.updates)

    @property
    def rows_per_update(self) -> int:
        return self._rows_per_update

    def add(self, batch: TrajectoryBatch) -> None:
        assert batch.behavior == self._behavior
        self.batches.append(batch.copy())
        self._step += batch.num_rows
        self.held += batch.num_rows

    def ready(self) -> bool:
        return self.held >= self._rows_per_update

    def learn(self) -> int:
        assert self.ready(), "asked to learn from too little"
        used = self.held if self._uses_all else self._rows_per_update
        self.held -= used
        self.updates.append(used)
        return used

    def policy(self) -> PolicyUpdate:
        return policy_update(self._behavior, self.version, self._step)

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step, "held": self.held, "updates": list(self.updates)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._step, self.held, self.updates = int(state["step"]), int(state["held"]), list(state["updates"])


def trajectories(
    lengths: Sequence[int],
    behavior_id: str = "Walker",
    source: int = 0,
    first_version: int = 0,
    generation: int = 0,
    learning: bool | Sequence[bool] = True,
    returns: Sequence[float] = (),
    games: Sequence[tuple[int, int, int, float]] = (),
) -> TrajectoryBatch:
    """A batch made by hand: rows numbered on, one agent per trajectory.

    Args:
        lengths: rows of each trajectory.
        behavior_id: whose they are.
        source: the actor.
        first_version: policy version of all of them.
        generation: their self-play stamp.
        learning: whether the learning team played them.
        returns: of episodes that ended with the batch.
        games: (generation, team, opponent, outcome) of games that ended with it.
    """
    n, k, e = sum(lengths), len(lengths), len(returns)
    learns = np.broadcast_to(np.asarray(learning, np.bool_), k).copy()
    columns = zip(*games, strict=True) if games else ((), (), (), ())
    names = ("game_generation", "game_team", "game_opponent", "game_outcome")
    kinds = (np.int32, np.int32, np.int32, np.float32)
    return TrajectoryBatch(
        behavior_id,
        source,
        {"obs_0": np.arange(n, dtype=np.float32)[:, None], "rewards": np.arange(n, dtype=np.float32)},
        {
            "lengths": np.array(lengths, np.int32),
            "agent_ids": np.arange(k),
            "first_version": np.full(k, first_version),
            "last_version": np.full(k, first_version),
            "generation": np.full(k, generation, np.int32),
            "learning": learns,
            "opponent": np.full(k, -1, np.int32),
            "terminated": np.zeros(k, np.bool_),
            "truncated": np.zeros(k, np.bool_),
            "credits": np.where(learns, lengths, 0).astype(np.int32),
        },
        {
            "episode_agent_ids": np.arange(e),
            "episode_returns": np.array(returns, np.float32),
            "episode_lengths": np.full(e, 3, np.int32),
            "episode_learning": np.ones(e, np.bool_),
        }
        if e
        else {},
        {n: np.array(list(c), kind) for n, c, kind in zip(names, columns, kinds, strict=True)} if games else {},
    )


class RecordedStatistics:
    """Keeps what was reported, by (category, name)."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], list[float]] = {}
        self.hows: dict[tuple[str, str], str] = {}

    def add(self, category: str, name: str, value: float, how: str = "mean") -> None:
        self.hows[category, name] = how
        self.values.setdefault((category, name), []).append(value)

    def extend(self, category: str, name: str, values: Any, how: str = "histogram") -> None:
        for value in values:
            self.add(category, name, value, how)
