"""Relabelling beside Stable-Baselines3's own, where that is importable: `PYTHONPATH=<its site-packages> pytest -m slow`."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from goal_steps import Scripted, memory_of
from gymnasium.spaces import Box, Dict

from headrace.queues.messages import TrajectoryBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.observations import EncodedObservations

SIZES = {"observation": 3, "achieved_goal": 2, "desired_goal": 2}
SPEC = BehaviorSpec("Test", tuple(ObservationSpec(name, (size,)) for name, size in SIZES.items()), ActionSpec(1))
TICKS, ENVS, BATCH = 60, 2, 64


def reward(achieved: Any, desired: Any) -> Any:
    return -np.linalg.norm(achieved - desired, axis=1)


class Both:
    """Their buffer and our memory, with the same steps of two environments."""

    def __init__(self, goals: str) -> None:
        her = pytest.importorskip("stable_baselines3.her")
        space = Dict({name: Box(-9, 9, (size,), np.float32) for name, size in SIZES.items()})
        env: Any = SimpleNamespace(env_method=lambda _, achieved, desired, *__, **___: [reward(achieved, desired)])
        self.theirs = her.HerReplayBuffer(
            TICKS * ENVS, space, Box(-1, 1, (1,)), env, "cpu", ENVS, n_sampled_goal=4, goal_selection_strategy=goals
        )
        self.ours = memory_of(goals, rewards=reward, spec=SPEC, capacity=TICKS * ENVS)
        self.places: dict[tuple[int, int], tuple[int, int]] = {}
        """By tick and environment: our place of the step, and of its episode's first."""
        self._begun: list[list[int]] = [[] for _ in range(ENVS)]
        random = np.random.default_rng(5)
        before = self._seen(random)
        for tick in range(TICKS):
            before = self._step(tick, before, random)

    def _seen(self, random: np.random.Generator) -> Any:
        return {name: random.normal(size=(ENVS, size)).astype(np.float32) for name, size in SIZES.items()}

    def _step(self, tick: int, before: Any, random: np.random.Generator) -> Any:
        after, action = self._seen(random), random.random((ENVS, 1), np.float32)
        after["desired_goal"] = before["desired_goal"]
        rewards = reward(after["achieved_goal"], before["desired_goal"]).astype(np.float32)
        over, terminated = random.random((2, ENVS)) < [[0.15], [0.5]]
        infos = [{"TimeLimit.truncated": bool(not each)} for each in terminated]
        self.theirs.add(before, after, action, rewards, over, infos)
        columns = {"rewards": rewards, "continuous_actions": action, "log_probs": np.zeros((ENVS, 1), np.float32)}
        pieces = {
            "lengths": np.ones(ENVS, np.int32),
            "agent_ids": np.arange(ENVS),
            "episode_ids": np.array([len(self._begun[env]) and self._begun[env][0] for env in range(ENVS)]),
            "terminated": over & terminated,
            "truncated": over & ~terminated,
        }
        encoded = (EncodedObservations(np.concatenate([*each.values()], axis=1)) for each in (before, after))
        for env in range(ENVS):
            self._begun[env].append(tick)
            pieces["episode_ids"][env] = self._begun[env][0]
            if over[env]:
                first = len(self.places)
                self.places.update({(at, env): (first + k, first) for k, at in enumerate(self._begun[env])})
                self._begun[env] = []
        self.ours.add(TrajectoryBatch("Test", 0, columns, pieces), *encoded)
        following = self._seen(random)
        return {name: np.where(over[:, None], following[name], after[name]) for name in SIZES}


@pytest.mark.slow
@pytest.mark.parametrize("goals", ["future", "final", "episode"])
def test_relabelled_minibatches_are_stable_baselines3s(goals: str, monkeypatch: pytest.MonkeyPatch) -> None:
    both, random = Both(goals), np.random.default_rng(1)
    drawn: list[Any] = []

    def choice(valid: Any, size: int, replace: bool) -> Any:
        assert replace
        drawn.append(random.choice(valid, size))
        return drawn[-1]

    def randint(low: Any, high: Any) -> Any:
        drawn.append((low, high, random.integers(low, high)))
        return drawn[-1][2]

    monkeypatch.setattr(np.random, "choice", choice)
    monkeypatch.setattr(np.random, "randint", randint)
    for _ in range(20):
        drawn.clear()
        theirs = both.theirs.sample(BATCH)
        found = [both.places[int(at) // ENVS, int(at) % ENVS] for at in drawn[0]]
        places, firsts = np.array(found).T
        firsts = firsts[: BATCH * 4 // 5]
        goal_draws = [tuple(firsts + each for each in draw) for draw in drawn[1:]]
        ours = both.ours.sample(BATCH, Scripted([(0, len(both.places), places), *goal_draws]))
        order = np.roll(np.arange(BATCH), BATCH - len(firsts))  # theirs has the real ones first
        for name, encoded in (("observations", ours.observations), ("next_observations", ours.next_observations)):
            expected = np.concatenate([getattr(theirs, name)[key].numpy() for key in SIZES], axis=1)
            np.testing.assert_array_equal(encoded.vectors[order], expected)
        np.testing.assert_array_equal(ours.columns["continuous_actions"][order], theirs.actions.numpy())
        np.testing.assert_array_equal(ours.columns["terminated"][order], theirs.dones.numpy()[:, 0] == 1)
        np.testing.assert_allclose(ours.columns["rewards"][order], theirs.rewards.numpy()[:, 0], rtol=1e-6)
