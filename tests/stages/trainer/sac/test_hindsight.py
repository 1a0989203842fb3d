"""Hindsight in the replay memory: what is drawn, which goals, and what is refused."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from opened_trainers import OpenedSAC
from trainer_samples import context_of, experience

from headrace.config.hyperparameters import HindsightSettings
from headrace.queues.messages import TrajectoryBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.observations import EncodedObservations, ObservationLayout
from headrace.stages.trainer.replay.hindsight import HindsightMemory
from headrace.stages.trainer.replay.replay_memory import ReplayFileError, ReplayMemory, read_replay, write_replay

SPEC = BehaviorSpec(
    "Test",
    (
        ObservationSpec("observation", (1,)),
        ObservationSpec("achieved_goal", (1,)),
        ObservationSpec("desired_goal", (1,), goal=True),
    ),
    ActionSpec(1),
)
DISTANCE = 50.0
"""The goal of all steps: on a line, so far away."""


class Goals:
    """Rewards of goals by a function of both."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.size = 0

    def open(self, size: int) -> None:
        self.size = size

    def __call__(self, achieved: Any, desired: Any) -> Any:
        return np.asarray(self._function(achieved, desired), np.float32)

    def close(self) -> None:
        pass


def distance(achieved: Any, desired: Any) -> Any:
    return -np.abs(achieved[:, 0] - desired[:, 0])


def memory_of(
    goals: str = "future",
    per_transition: int = 4,
    capacity: int = 64,
    rewards: Any = distance,
    spec: BehaviorSpec = SPEC,
    plain: bool = False,
) -> Any:
    """A memory of steps of `batch_of`; `plain` for one without hindsight."""
    layout = ObservationLayout(spec)
    if plain:
        return ReplayMemory(spec, layout, capacity)
    found: Any = rewards if rewards is None or isinstance(rewards, Goals) else Goals(rewards)
    context = replace(context_of("sac", spec), goal_rewards=found)
    settings = HindsightSettings.model_validate({"goals": goals, "per_transition": per_transition})
    return HindsightMemory(context, layout, capacity, settings)


def batch_of(
    memory: Any, steps: Sequence[tuple[int, float, str]]
) -> tuple[TrajectoryBatch, EncodedObservations, EncodedObservations]:
    """One batch for `add` of pieces of one row: the agent, what its step achieves, and how the piece ends."""
    known = vars(memory).setdefault("agents", {})
    rows, finals, episodes, rewards = [], [], [], []
    for agent, achieved, ending in steps:
        episode, before = known.get(agent, (0, 0.0))
        rows.append([0.5, before, DISTANCE])
        finals.append([0.5, achieved, DISTANCE])
        episodes.append(episode)
        rewards.append(-abs(achieved - DISTANCE))
        known[agent] = (episode, achieved) if ending == "cut" else (episode + 1, 0.0)
    n = len(steps)
    columns = {
        "rewards": np.array(rewards, np.float32),
        "continuous_actions": np.zeros((n, 1), np.float32),
        "log_probs": np.zeros((n, 1), np.float32),
    }
    pieces = {
        "lengths": np.ones(n, np.int32),
        "agent_ids": np.array([agent for agent, _, _ in steps]),
        "episode_ids": np.array(episodes),
        "terminated": np.array([ending == "terminated" for _, _, ending in steps]),
        "truncated": np.array([ending == "truncated" for _, _, ending in steps]),
    }
    before, after = (EncodedObservations(np.array(each, np.float32)) for each in (rows, finals))
    return TrajectoryBatch("Test", 0, columns, pieces), before, after


class Scripted(np.random.Generator):
    """Draws what it is told, once it has been asked for numbers between the bounds that are expected.

    Args:
        draws: of each call both bounds, and what it returns.
    """

    def __init__(self, draws: Sequence[tuple[Any, Any, Any]]) -> None:
        super().__init__(np.random.PCG64())
        self._draws = list(draws)

    def integers(self, low: Any, high: Any = None, *_: Any, **__: Any) -> Any:
        lowest, above, drawn = self._draws.pop(0)
        np.testing.assert_array_equal(low, lowest)
        np.testing.assert_array_equal(high, above)
        return np.asarray(drawn)


STEPS = [(0, 1.0, "cut"), (1, 10.0, "cut"), (0, 2.0, "cut"), (1, 20.0, "truncated"), (0, 3.0, "terminated")]
"""Steps of two agents in turn: the agent, what it achieves, and how its piece ends. The second one ends first."""


def filled(goals="future", **more):
    memory = memory_of(goals, **more)
    for steps in (STEPS[:2], STEPS[2:3], STEPS[3:]):
        memory.add(*batch_of(memory, steps))
    return memory


def test_rows_have_places_in_the_order_of_the_ends_of_their_episodes():
    memory = filled()
    assert memory.drawable == 5
    replayed = memory.relabelled(np.arange(5), np.empty(0, np.int64))
    assert replayed.next_observations.vectors[:, 1].tolist() == [10, 20, 1, 2, 3]
    assert replayed.observations.vectors[:, 1].tolist() == [0, 10, 0, 1, 2], "what was achieved before"
    assert replayed.columns["terminated"].tolist() == [False, False, False, False, True]


@pytest.mark.parametrize(
    ("goals", "draws", "achieved"),
    [
        ("future", [([0, 2, 3], [2, 5, 5], [1, 4, 3])], [20, 3, 2]),
        ("final", [], [20, 3, 3]),
        ("episode", [([0, 2, 2], [2, 5, 5], [0, 2, 4])], [10, 1, 3]),
    ],
)
def test_three_of_four_rows_get_goals_that_their_episodes_achieved(goals, draws, achieved):
    memory = filled(goals, per_transition=3)
    replayed = memory.sample(4, Scripted([(0, 5, [0, 2, 3, 4]), *draws]))
    own = DISTANCE
    assert replayed.observations.vectors[:, 2].tolist() == [*achieved, own]
    assert replayed.next_observations.vectors[:, 2].tolist() == [*achieved, own]
    after = np.array([10, 1, 2])
    assert replayed.next_observations.vectors[:, 1].tolist() == [*after, 3]
    assert replayed.columns["rewards"].tolist() == [*(-abs(after - achieved)), 3 - own]
    assert replayed.columns["terminated"].tolist() == [False, False, False, True]
    assert replayed.observations.vectors[:, 0].tolist() == [0.5] * 4, "the rest stays"


def test_only_finished_episodes_are_drawn_from():
    memory = memory_of()
    memory.add(*batch_of(memory, STEPS[:3]))
    assert (len(memory), memory.drawable, memory.enough(0), memory.enough(100)) == (3, 0, False, False)
    memory.add(*batch_of(memory, STEPS[3:4]))
    assert (memory.drawable, memory.enough(100)) == (2, True)


def test_an_episode_is_left_as_a_whole_when_its_first_row_is_replaced():
    memory = memory_of(capacity=6)
    for start in (0.0, 100.0, 200.0):
        memory.add(*batch_of(memory, [(0, start + 1, "cut"), (0, start + 2, "truncated")]))
    assert memory.drawable == 6
    memory.add(*batch_of(memory, [(0, 301.0, "cut")]))
    assert memory.drawable == 4
    drawn = memory.sample(400, np.random.default_rng(0)).next_observations.vectors[:, 1]
    assert set(drawn.tolist()) == {101, 102, 201, 202}


@pytest.mark.lengthy
def test_of_many_agents_and_a_small_ring_goals_are_always_of_the_rows_own_episode():
    random = np.random.default_rng(3)
    for goals in ("future", "final", "episode"):
        memory, clock = memory_of(goals, capacity=37), dict.fromkeys(range(4), (0, 0))
        for _ in range(120):
            steps = []
            for agent in random.choice(4, size=random.integers(1, 5), replace=False).tolist():
                episode, step = clock[agent]
                ends = bool(random.random() < 0.2)
                steps.append((agent, 10_000.0 * agent + 100 * episode + step + 1, "truncated" if ends else "cut"))
                clock[agent] = (episode + 1, 0) if ends else (episode, step + 1)
            memory.add(*batch_of(memory, steps))
            assert memory.drawable <= len(memory) <= 37
            if memory.drawable:
                replayed = memory.sample(64, random)
                after, goal = replayed.next_observations.vectors[:51, 1], replayed.observations.vectors[:51, 2]
                assert (after // 100 == goal // 100).all(), "the same agent and episode"
                assert goals == "episode" or (goal >= after).all()


def test_episodes_without_end_are_named_once(caplog):
    memory = memory_of(capacity=4)
    with caplog.at_level(logging.WARNING):
        for at in range(9):
            memory.add(*batch_of(memory, [(0, float(at), "cut")]))
    assert [record.getMessage().partition(", and")[0] for record in caplog.records] == [
        "Test: no episode has ended in 4 steps"
    ]


def test_rewards_other_than_those_of_compute_reward_are_named_once(caplog):
    memory = filled(rewards=lambda achieved, desired: achieved[:, 0] - desired[:, 0] + 0.25)
    with caplog.at_level(logging.WARNING):
        for seed in range(3):
            memory.sample(10, np.random.default_rng(seed))
    (record,) = caplog.records
    assert "Test: 2 of 2 checked steps have a reward that differs" in record.getMessage()


def test_a_saved_memory_continues_with_the_same_samples(tmp_path):
    memory, path = memory_of("episode", capacity=12), tmp_path / "replay.bin"
    for steps in (STEPS, STEPS[:2]):
        memory.add(*batch_of(memory, steps))
    write_replay(memory, path)
    again = memory_of("final", capacity=12)
    read_replay(again, path)
    for each in (memory, again):
        each.add(*batch_of(each, [(agent + 5, achieved, ending) for agent, achieved, ending in STEPS]))
    assert again.drawable == memory.drawable == 10
    one, other = (each.relabelled(np.arange(10), np.arange(10)) for each in (memory, again))
    np.testing.assert_array_equal(one.next_observations.vectors, other.next_observations.vectors)
    assert one.next_observations.vectors[:, 2].tolist() == 2 * [10, 20, 1, 2, 3]
    for each in (memory, again):
        each.add(*batch_of(each, STEPS[:1]))
        assert each.drawable == 5
    plain = memory_of(capacity=12, plain=True)
    with pytest.raises(ReplayFileError, match="or hindsight has been switched on or off since then"):
        read_replay(plain, path)


def trained():
    hyperparameters = {"batch_size": 4, "steps_per_update": 1, "hindsight": {}}
    context = context_of("sac", SPEC, hyperparameters=hyperparameters)
    return OpenedSAC(replace(context, goal_rewards=Goals(distance)))


@pytest.mark.lengthy
def test_steps_before_the_first_end_of_an_episode_owe_no_updates():
    trainer, made, goals = trained(), [], []
    for seed, ends in enumerate((False, False, True, False)):
        batch = experience(SPEC, [5], seed, squashed=True)
        trainer.add(batch.replace(terminated=np.array([ends]), episode_ids=np.array([seed // 3])))
        trainer.learn()
        made.append(trainer.state_dict()["update"]["optimizers"]["actor"]["steps"])
        goals.append(batch.trajectories["next_obs_1"].item())
    assert made == [0, 0, 5, 10]
    (row,) = trainer.memory.relabelled(np.array([14]), np.array([14])).observations.vectors
    assert row[2] == np.float32(goals[2]), "what the step that terminated achieved is kept"


@pytest.mark.parametrize(
    ("observations", "said"),
    [
        ((ObservationSpec("observation", (3,)),), "achieved_goal is not among the vectors of: observation"),
        (
            (ObservationSpec("achieved_goal", (2,)), ObservationSpec("desired_goal", (2, 8, 8), "uint8")),
            "desired_goal is not among the vectors of: achieved_goal .*, desired_goal .image.",
        ),
    ],
)
def test_other_observations_are_refused_by_name(observations, said):
    spec = BehaviorSpec("Test", observations, ActionSpec(1))
    with pytest.raises(StageError, match=said):
        memory_of(spec=spec)


def test_without_an_environment_it_is_refused_by_name():
    with pytest.raises(
        StageError, match="Test: hindsight needs an environment with compute_reward, which this environment lacks"
    ):
        memory_of(rewards=None)


def test_goals_may_be_at_any_position_and_in_float64():
    spec = BehaviorSpec(
        "Test",
        (
            ObservationSpec("desired_goal", (2,), "float64", goal=True),
            ObservationSpec("image", (3, 8, 8), "uint8"),
            ObservationSpec("achieved_goal", (2,), "float64"),
        ),
        ActionSpec(1),
    )
    rewards = Goals(lambda achieved, desired: -np.abs(achieved - desired).sum(axis=1))
    memory = memory_of(spec=spec, rewards=rewards, per_transition=10**6)
    assert isinstance(memory, HindsightMemory)
    assert rewards.size == 2
    memory.add(*_encoded(memory, 3))
    replayed = memory.relabelled(np.array([0, 2]), np.array([1, 2]))
    assert replayed.observations.vectors.tolist() == [[3, 4, 0, 0], [5, 6, 3, 4]]
    assert replayed.next_observations.vectors.tolist() == [[3, 4, 1, 2], [5, 6, 5, 6]]
    assert replayed.columns["rewards"].tolist() == [-4, 0]


def _encoded(memory, count):
    """One episode of rows that achieve [1, 2], [3, 4], …, for goals of [9, 9]."""
    batch, _, _ = batch_of(memory, [(0, 0.0, "truncated")])
    columns = {name: np.repeat(column, count, axis=0) for name, column in batch.rows.items()}
    batch = TrajectoryBatch("Test", 0, columns, {**batch.trajectories, "lengths": np.array([count], np.int32)})
    achieved = np.arange(2 * count + 2, dtype=np.float64).reshape(-1, 2) - 1
    achieved[0] = 0
    vectors = np.concatenate((np.full_like(achieved, 9.0), achieved), axis=1)
    images = np.zeros((count + 1, 3, 8, 8), np.uint8)
    rows, finals = (EncodedObservations(vectors[part], (images[part],)) for part in (slice(count), slice(count, None)))
    return batch, rows, finals
