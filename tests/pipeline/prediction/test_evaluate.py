"""`evaluate`: the same returns and lengths in every kind of environment as a loop over `predict` has."""

from __future__ import annotations

from itertools import chain
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics, TransformReward
from pettingzoo import AECEnv, ParallelEnv  # type: ignore[import-untyped]
from predicted import MEMORY, group_of, saved

from headrace import LoadedMixture, RunError, evaluate, load_policy

SEEN, DONE = spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,))
SPEC = group_of(SEEN, DONE)[0].behavior_specs["Test"]


class Errand(gymnasium.Env):
    """Ends after a drawn number of steps; its reward depends on what it showed and was told."""

    observation_space, action_space = SEEN, DONE

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = int(self.np_random.integers(1, 6))
        return self._seen(), {}

    def step(self, action):
        self._left -= 1
        reward = float(np.dot(self._shown[:2], action)) + 1.0
        return self._seen(), reward, self._left == 0, False, {}

    def _seen(self):
        self._shown = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return self._shown


def by_predict(policy, env, episodes, seed, held=1):
    """Returns and lengths by a loop over `predict`."""
    found = []
    for number in range(episodes):
        observation, _ = env.reset(seed=seed if number == 0 else None)
        total, steps, ended, state = 0.0, 0, False, None
        while not ended:
            if steps % held == 0:
                action, state = policy.predict(observation, state=state)
            observation, reward, ended, _, _ = env.step(action)
            total, steps = total + reward, steps + 1
        found.append((total, steps))
    return found


def assert_played(evaluation, *expected):
    """Assert that these are the returns and lengths, one after the other or, of several that play, in any order."""
    found, all_of_them = zip(evaluation.returns, evaluation.lengths, strict=True), [*chain(*expected)]
    order = sorted if len(expected) > 1 else list
    np.testing.assert_allclose(order(found), order(all_of_them), rtol=1e-5)


@pytest.fixture(params=[{}, MEMORY], ids=["without memory", "with memory"])
def policy(request, tmp_path):
    return load_policy(saved(tmp_path, SPEC, **request.param))


@pytest.mark.parametrize("given", ["an environment", "a function"])
def test_evaluate_equals_a_loop_over_predict_in_a_single_environment(policy, given):
    env = Errand()
    found = evaluate(policy, env if given == "an environment" else lambda: env, episodes=7, seed=4)
    assert_played(found, by_predict(policy, Errand(), 7, 4))
    assert found.mean == pytest.approx(np.mean(found.returns))
    assert found.deviation == pytest.approx(np.std(found.returns))


@pytest.mark.parametrize("mode", AutoresetMode)
def test_each_instance_of_a_vector_environment_plays_its_share_in_any_autoreset_mode(policy, mode):
    found = evaluate(policy, SyncVectorEnv([Errand] * 3, autoreset_mode=mode), episodes=8, seed=4)
    alone = [by_predict(policy, Errand(), share, 4 + i) for i, share in enumerate((2, 3, 3))]
    assert_played(found, *alone)


class Stacked:
    """As a VecEnv of Stable-Baselines3's."""

    num_envs, observation_space, action_space = 2, SEEN, DONE

    def __init__(self):
        self._envs = [Errand(), Errand()]

    def seed(self, seed):
        self._seeds = [seed, seed + 1]

    def reset(self):
        return np.stack([env.reset(seed=seed)[0] for env, seed in zip(self._envs, self._seeds, strict=True)])

    def step_async(self, actions):
        raise NotImplementedError("`step` calls it")

    def step(self, actions):
        rows = [env.step(action) for env, action in zip(self._envs, actions, strict=True)]
        seen = [env.reset()[0] if row[2] else row[0] for env, row in zip(self._envs, rows, strict=True)]
        return np.stack(seen), np.array([row[1] for row in rows]), np.array([row[2] for row in rows]), [{}, {}]

    def env_method(self, name):
        raise AttributeError(name)


def test_a_vec_env_of_stable_baselines_is_played_too(policy):
    found = evaluate(policy, Stacked(), episodes=4, seed=4)
    alone = [by_predict(policy, Errand(), 2, 4 + i) for i in range(2)]
    assert_played(found, *alone)


class Pair(ParallelEnv):  # type: ignore[misc]
    """Two agents, each with an errand of its own, the second of whom may be done later."""

    metadata, possible_agents = {"name": "pair"}, ["a", "b"]

    def observation_space(self, agent):
        return SEEN

    def action_space(self, agent):
        return DONE

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        if seed is not None:
            self._envs = {agent: Errand() for agent in self.agents}
        seeds = dict(zip(self.agents, (seed, None if seed is None else seed + 1), strict=True))
        return {agent: self._envs[agent].reset(seed=seeds[agent])[0] for agent in self.agents}, {}

    def step(self, actions):
        rows = {agent: self._envs[agent].step(action) for agent, action in actions.items()}
        self.agents = [agent for agent, row in rows.items() if not row[2]]
        return tuple({agent: row[at] for agent, row in rows.items()} for at in range(5))


class Turns(AECEnv):  # type: ignore[misc]
    """The same in turns."""

    metadata, possible_agents = {"name": "turns"}, ["a", "b"]

    def __init__(self):
        super().__init__()
        self._pair = Pair()

    def observation_space(self, agent):
        return SEEN

    def action_space(self, agent):
        return DONE

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        self._seen, _ = self._pair.reset(seed)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.agent_selection = "a"

    def observe(self, agent):
        return self._seen[agent]

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(None)
        else:
            self._seen[agent], reward, self.terminations[agent], _, _ = self._pair._envs[agent].step(action)
            self._cumulative_rewards[agent] = 0.0
            self.rewards = {each: reward if each == agent else 0.0 for each in self.agents}
            self._accumulate_rewards()
        if self.agents:
            others = [each for each in self.agents if each != agent]
            self.agent_selection = others[0] if others else self.agents[0]


@pytest.mark.parametrize("kind", [Pair, Turns])
def test_of_several_agents_each_ones_episode_counts(policy, kind):
    found = evaluate(policy, kind(), episodes=4, seed=4)
    alone = [by_predict(policy, Errand(), 2, 4 + i) for i in range(2)]
    assert_played(found, *alone)


def test_returns_recorded_by_a_monitor_take_precedence_over_rewards_changed_by_a_wrapper(tmp_path):
    def scaled():
        return TransformReward(RecordEpisodeStatistics(Errand()), lambda reward: 100.0 * float(reward))

    policy = load_policy(saved(tmp_path, SPEC))
    expected = by_predict(policy, Errand(), 3, 4)
    assert_played(evaluate(policy, scaled(), episodes=3, seed=4), expected)
    many = SyncVectorEnv([scaled], autoreset_mode=AutoresetMode.SAME_STEP)
    assert_played(evaluate(policy, many, episodes=3, seed=4), expected)


def test_an_action_is_held_for_as_long_as_in_training(tmp_path):
    policy = load_policy(saved(tmp_path, SPEC))
    policy.action_repeat = 2
    found = evaluate(policy, Errand(), episodes=5, seed=4)
    assert_played(found, by_predict(policy, Errand(), 5, 4, held=2))


def test_a_mask_in_the_infos_is_obeyed(tmp_path):
    class Forbidding(gymnasium.Env):
        observation_space, action_space = SEEN, spaces.Discrete(3)

        def reset(self, *, seed=None, options=None):
            self.told = []
            return np.zeros(3, np.float32), {"action_mask": np.array([0, 0, 1], np.int8)}

        def step(self, action):
            self.told.append(int(action))
            over = len(self.told) == 4
            return np.zeros(3, np.float32), 1.0, over, False, {"action_mask": np.array([0, 1, 0], np.int8)}

    spec = group_of(SEEN, spaces.Discrete(3), mask=lambda: np.ones(3, np.int8))[0].behavior_specs["Test"]
    env = Forbidding()
    assert evaluate(load_policy(saved(tmp_path, spec)), env, episodes=1).lengths == (4,)
    assert env.told == [2, 1, 1, 1]


def test_a_file_a_run_and_its_result_name_the_policy_too(tmp_path):
    file = saved(tmp_path, SPEC)
    expected = evaluate(load_policy(file), Errand(), episodes=3, seed=4)
    assert evaluate(file, Errand(), episodes=3, seed=4) == expected
    assert evaluate(SimpleNamespace(folder=file), Errand(), episodes=3, seed=4) == expected


def test_environments_made_by_evaluate_are_closed_and_given_ones_stay_open(tmp_path):
    class Closing(Errand):
        closed = 0

        def close(self):
            self.closed += 1

    policy, given, made = load_policy(saved(tmp_path, SPEC)), Closing(), Closing()
    evaluate(policy, given, episodes=1)
    evaluate(policy, lambda: made, episodes=1)
    assert (given.closed, made.closed) == (0, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env": 3}, r"env: expected a Gymnasium environment .*; got an int"),
        ({"episodes": 0}, r"episodes: expected 1 or more, got 0"),
        ({"behavior": "Ball"}, r"behavior and checkpoint choose a policy from a run"),
    ],
)
def test_invalid_arguments_of_evaluate_are_refused(tmp_path, arguments, message):
    with pytest.raises(RunError, match=message):
        evaluate(**{"policy": load_policy(saved(tmp_path, SPEC)), "env": Errand(), **arguments})


class Deserted(Pair):
    def reset(self, seed=None, options=None):
        self.agents = []
        return {}, {}


class DesertedTurns(Turns):
    def reset(self, seed=None, options=None):
        self.agents = []


@pytest.mark.parametrize("kind", [Deserted, DesertedTurns])
def test_an_environment_that_begins_without_agents_is_named_and_does_not_hang(tmp_path, kind):
    with pytest.raises(RunError, match="no agents after reset"):
        evaluate(load_policy(saved(tmp_path, SPEC)), kind(), episodes=2)


def test_a_leagues_mixture_has_a_member_play_each_episode_to_its_end(tmp_path):
    members = [load_policy(saved(tmp_path / name, SPEC, seed=seed)) for name, seed in (("a", 1), ("b", 2))]
    mixture = LoadedMixture("Test", members, [0.25, 0.75], seed=3)
    drawn, by_member, env = [], [], Errand()

    def noted(reset=mixture.reset):
        drawn.append(reset())
        return drawn[-1]

    mixture.reset = noted  # type: ignore[method-assign]
    evaluation = evaluate(mixture, env, 60, seed=5)
    env.reset(seed=5)
    assert len(drawn) == 61, "once for the agent, which begins, and once for each episode"
    assert {id(each) for each in drawn} == {id(each) for each in members}
    for policy in drawn[1:]:
        observation, _ = env.reset(seed=5 if not by_member else None)
        total, ended = 0.0, False
        while not ended:
            observation, reward, ended, _, _ = env.step(policy.predict(observation).action)
            total += reward
        by_member.append(total)
    assert evaluation.returns == pytest.approx(by_member)
