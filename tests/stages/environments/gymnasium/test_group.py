"""The Gymnasium group against loops over single environments, in every autoreset mode."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from headrace.config import ObservationSettings
from headrace.queues.messages import ActionBatch
from headrace.stages.environments.gymnasium.group import GymnasiumGroup
from headrace.stages.environments.gymnasium.singles import make_vector, vectorise
from headrace.stages.environments.spaces.own_space import from_plain, own_space
from headrace.stages.errors import BrokenEnvironmentError, StageError

MODES = list(AutoresetMode)
CHOICES = 3


class Counting(gymnasium.Env):
    """Counts its steps; episodes of random lengths end in all three ways. Refuses what should not happen.

    It returns the same array each time, as many environments do, and allows only the choice that follows from
    the observation, so that an action that goes astray shows.
    """

    observation_space: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, (4,), np.float64)
    action_space: spaces.Space[Any] = spaces.Discrete(CHOICES, start=2)

    def __init__(self, longest=4, masks=False):
        self.longest, self.masks = longest, masks
        self.episode, self.steps, self.over = -1, 0, True
        self.observation: Any = np.zeros(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t, self.over = self.episode + 1, 0, False
        self.length = int(self.np_random.integers(1, self.longest + 1))
        self.way = int(self.np_random.integers(3))
        return self.look(), self._info()

    def step(self, action):
        assert not self.over, "stepped after the end of the episode"
        assert action - 2 == choice(self.observation), "an action for somebody else"
        assert action in Counting.action_space
        self.t, self.steps = self.t + 1, self.steps + 1
        self.over = self.t == self.length
        reward = 100.0 * self.episode + 10 * self.t + float(action)
        return self.look(), reward, self.over and self.way != 0, self.over and self.way != 1, self._info()

    def look(self):
        self.observation[:] = [self.episode, self.t, self.length, self.np_random.integers(1000)]
        return self.observation

    def _info(self):
        return {"action_mask": mask_of(self.observation).astype(np.int8) * (not self.over)} if self.masks else {}


class Composed(Counting):
    """The same with a Dict of observations, the same one each time, and hybrid actions."""

    observation_space = spaces.Dict(numbers=Counting.observation_space, picture=spaces.Box(0, 255, (2, 4, 4), np.uint8))
    action_space = spaces.Dict(push=spaces.Box(0, 1, (1,)), turn=spaces.Tuple([Counting.action_space]))

    def __init__(self, longest=4):
        super().__init__(longest)
        self.seen: dict[str, Any] = {"numbers": self.observation, "picture": np.zeros((2, 4, 4), np.uint8)}

    def step(self, action):
        assert action in self.action_space
        assert action["push"] == push(self.observation), "an action for somebody else"
        return super().step(action["turn"][0])

    def look(self):
        numbers = super().look()
        self.seen["picture"][:] = picture_of(numbers)
        return self.seen


def push(observation):
    """How hard Composed has to be pushed, as the environment gets it."""
    return np.float32(choice(observation) / 2)


def picture_of(numbers):
    return int(np.asarray(numbers).sum()) % 251


def choice(observation):
    """The only choice that Counting allows."""
    return int(np.asarray(observation).sum()) % CHOICES


def mask_of(observation):
    return np.arange(CHOICES) != (choice(observation) + 1) % CHOICES


def group_of(mode, num_envs, longest=4, masks=False, composed=False):
    """A group in an autoreset mode, with its single environments."""
    singles = [Composed(longest) if composed else Counting(longest, masks) for _ in range(num_envs)]
    if mode is AutoresetMode.SAME_STEP:
        others = iter(singles[1:])
        envs = vectorise(singles[0], lambda: next(others), num_envs, "Counting")
    else:
        envs = SyncVectorEnv([partial(next, iter([env])) for env in singles], autoreset_mode=mode)
    return GymnasiumGroup(envs, "B", "Counting"), singles


def decide(steps):
    observations = steps.observations[0][steps.ended :]
    choices = np.array([[choice(observation)] for observation in observations], np.int32).reshape(-1, 1)
    pushes = choices.astype(np.float32) - 1 if len(steps.observations) == 2 else np.empty((len(choices), 0), np.float32)
    return ActionBatch(pushes, choices)


def transitions_of(group, seed, ticks):
    """Transitions per agent: (observation, reward, next observation, terminated, truncated, episode)."""
    made, waiting, episodes = defaultdict(list), {}, {}
    result = group.reset(seed)
    for tick in range(ticks + 1):
        steps = result.steps["B"]
        check_rows(steps, group.num_envs)
        for row, agent in enumerate(steps.agent_ids.tolist()):
            observation, reward = steps.observations[0][row].copy(), float(steps.rewards[row])
            ending = row < steps.ended
            if agent in waiting:
                assert steps.episode_ids[row] == episodes[agent]
                ended = (bool(steps.terminated[row]), bool(steps.truncated[row])) if ending else (False, False)
                before = waiting.pop(agent)
                made[agent].append((before.tolist(), reward, observation.tolist(), *ended, episodes[agent]))
            else:
                assert not ending, "an ending without a decision before it"
                assert reward == 0, "a reward in an episode's first row"
                assert steps.episode_ids[row] == episodes.get(agent, -1) + 1
                episodes[agent] = int(steps.episode_ids[row])
            if not ending:
                waiting[agent] = observation
        if tick < ticks:
            result = group.step({"B": decide(steps)})
    return made


def check_rows(steps, num_envs):
    n, d = len(steps.agent_ids), len(steps.agent_ids) - steps.ended
    assert steps.agent_ids.tolist() == steps.env_ids.tolist()
    assert steps.rewards.dtype == np.float32
    assert steps.observations[0].dtype == np.float32
    assert len(steps.env_ids) == len(steps.episode_ids) == len(steps.rewards) == len(steps.observations[0]) == n
    assert len(steps.terminated) == len(steps.truncated) == steps.ended
    assert (steps.terminated | steps.truncated).all()
    for numbers, picture in zip(*steps.observations, strict=True) if len(steps.observations) == 2 else ():
        assert (picture == picture_of(numbers)).all(), "parts of different observations in one row"
    assert len(set(steps.agent_ids[steps.ended :].tolist())) == d > 0
    assert n <= 2 * num_envs


def transitions_alone(env, seed, count):
    """The same for one environment, by the loop that everybody knows."""
    made = []
    observation, _ = env.reset(seed=seed)
    observation, episode = observation.copy(), 0
    for _ in range(count):
        after, reward, terminated, truncated, _ = env.step(choice(observation) + 2)
        made.append((observation.tolist(), reward, after.tolist(), terminated, truncated, episode))
        observation = after.copy()
        if terminated or truncated:
            observation, episode = env.reset()[0].copy(), episode + 1
    return made


@pytest.mark.lengthy
@examples(25)
@given(
    mode=st.sampled_from(MODES),
    num_envs=st.integers(1, 5),
    longest=st.integers(1, 6),
    seed=st.integers(0, 10_000),
    masks=st.booleans(),
)
def test_the_transitions_are_those_of_single_environments(mode, num_envs, longest, seed, masks):
    group, singles = group_of(mode, num_envs, longest, masks)

    made = transitions_of(group, seed, ticks=20)

    for i in range(num_envs):
        assert made[i] == transitions_alone(Counting(longest), seed + i, len(made[i]))
        # Every step of the environment is a transition: none is lost, and resetting counts for none.
        assert singles[i].steps == len(made[i])
        assert len(made[i]) == 20 or (mode is AutoresetMode.NEXT_STEP and len(made[i]) >= 10)


@pytest.mark.lengthy
@examples(25)
@given(
    mode=st.sampled_from(MODES),
    num_envs=st.integers(1, 5),
    longest=st.integers(1, 6),
    seed=st.integers(0, 10_000),
)
def test_dict_observations_and_hybrid_actions_make_the_same_transitions(mode, num_envs, longest, seed):
    group, singles = group_of(mode, num_envs, longest, composed=True)

    made = transitions_of(group, seed, ticks=20)

    names = [spec.name for spec in group.behavior_specs["B"].observations]
    assert names == ["numbers", "picture"]
    assert str(from_plain(group.behavior_specs["B"].spaces["observation"])) == str(
        own_space(singles[0].observation_space)
    )
    for i in range(num_envs):
        assert made[i] == transitions_alone(Counting(longest), seed + i, len(made[i]))
        assert singles[i].steps == len(made[i])


@pytest.mark.parametrize("mode", MODES)
def test_a_lone_instance_never_leaves_a_tick_without_a_decision(mode):
    group, _ = group_of(mode, 1, longest=1)
    steps = group.reset(0).steps["B"]

    for episode in range(1, 5):
        steps = group.step({"B": decide(steps)}).steps["B"]

        assert steps.ended == 1
        assert steps.episode_ids.tolist() == [episode - 1, episode]
        assert steps.rewards[1] == 0


@pytest.mark.parametrize("mode", MODES)
def test_masks_belong_to_the_observation_of_their_row(mode):
    group, _ = group_of(mode, 3, longest=3, masks=True)
    steps = group.reset(5).steps["B"]

    assert group.behavior_specs["B"].actions.masked
    for _ in range(30):
        expected = [mask_of(observation).tolist() for observation in steps.observations[0][steps.ended :]]
        assert steps.action_masks.dtype == bool
        assert steps.action_masks.tolist() == expected
        steps = group.step({"B": decide(steps)}).steps["B"]


@pytest.mark.parametrize("composed", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_rows_of_the_last_tick_stay_as_they_are_during_the_next_step(mode, composed):
    group, _ = group_of(mode, 3, composed=composed)
    last = group.reset(1).steps["B"]

    for _ in range(20):
        before = (
            last.observations[-1].copy(),
            last.rewards.copy(),
            last.episode_ids.copy(),
            last.terminated.copy(),
        )
        now = group.step({"B": decide(last)}).steps["B"]
        after = (last.observations[-1], last.rewards, last.episode_ids, last.terminated)
        assert all((a == b).all() for a, b in zip(before, after, strict=True))
        last = now


@pytest.mark.parametrize("mode", MODES)
def test_a_reset_in_the_middle_restarts_all_episodes(mode):
    group, _ = group_of(mode, 3)
    first = group.reset(7).steps["B"]
    steps = first
    while not steps.ended:
        steps = group.step({"B": decide(steps)}).steps["B"]

    again = group.reset(7).steps["B"]

    assert again.ended == 0
    assert again.observations[0][:, 1:].tolist() == first.observations[0][:, 1:].tolist()  # 0 counts its episodes
    assert again.episode_ids.tolist() == first.episode_ids.tolist()
    assert (group.step({"B": decide(again)}).steps["B"].rewards[-3:] != 0).any()


# Vector environments that others made


class TwoInstances(VectorEnv):
    """A vector environment with room for mistakes: two instances that end at every second step."""

    metadata = {}  # of its own: ale-py writes its autoreset mode into that of all vector environments

    def __init__(self, mode, final=None, shape=(2, 3), rewards=(2,), mask=None, over_on_reset=False):
        if mode is not None:
            self.metadata = {"autoreset_mode": mode}
        self.num_envs = 2
        self.single_observation_space = spaces.Box(-9, 9, (3,), np.float32)
        self.observation_space = spaces.Box(-9, 9, (2, 3), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.action_space = spaces.MultiDiscrete([2, 2])
        self.final, self.shape, self.rewards, self.mask = final, shape, rewards, mask
        self.over_on_reset, self.t, self.closings = over_on_reset, 0, 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(self.shape, np.float32), {} if self.mask is None else {"action_mask": self.mask}

    def step(self, actions):
        self.t += 1
        over = np.array([self.t % 2 == 0 or (self.over_on_reset and self.t > 2), False])
        infos = {} if self.final is None or not over.any() else {"final_obs": self.final}
        return (
            np.full(self.shape, self.t, np.float32),
            np.full(self.rewards, self.t),
            over,
            over & False,
            infos,
        )

    def close_extras(self, **kwargs):
        self.closings += 1


def zeros(count=2):
    return {"B": ActionBatch(np.empty((count, 0), np.float32), np.zeros((count, 1), np.int32))}


def test_final_observations_may_come_as_one_array():
    final = np.array([[7, 7, 7], [0, 0, 0]], np.float32)
    group = GymnasiumGroup(TwoInstances(AutoresetMode.SAME_STEP, final), "B", "Given")
    group.reset()
    group.step(zeros())

    steps = group.step(zeros()).steps["B"]

    assert steps.agent_ids.tolist() == [0, 0, 1]
    assert steps.observations[0].tolist() == [[7, 7, 7], [2, 2, 2], [2, 2, 2]]
    assert steps.rewards.tolist() == [2, 0, 2]


class TwoDictInstances(TwoInstances):
    """A vectorised implementation whose observations are Dicts, the final ones too."""

    def __init__(self):
        super().__init__(AutoresetMode.SAME_STEP)
        self.single_observation_space = spaces.Dict(a=spaces.Box(-9, 9, (1,)), b=spaces.Tuple([spaces.Discrete(9)]))

    def reset(self, *, seed=None, options=None):
        return self.look(0), {}

    def step(self, actions):
        _, rewards, terminated, truncated, _ = super().step(actions)
        infos = {"final_obs": self.look(10 * self.t)} if terminated.any() else {}
        return self.look(self.t), rewards, terminated, truncated, infos

    def look(self, value):
        return {"a": np.full((2, 1), value, np.float32), "b": (np.array([1, value % 9]),)}


def test_final_observations_of_a_dict_may_come_as_a_batch():
    group = GymnasiumGroup(TwoDictInstances(), "B", "Given")
    group.reset()
    group.step(zeros())

    steps = group.step(zeros()).steps["B"]

    assert steps.observations[0].tolist() == [[20], [2], [2]]
    assert steps.observations[1].argmax(axis=1).tolist() == [1, 1, 2]


def test_settings_choose_the_kind_of_an_observation():
    settings = {"observation": ObservationSettings(kind="set", goal=True)}
    group = GymnasiumGroup(vectorise(Table(), Table, 2, "Table"), "B", "Table", settings)

    steps = group.reset(0).steps["B"]

    (spec,) = group.behavior_specs["B"].observations
    assert (spec.kind, spec.shape, spec.goal) == ("set", (3, 2), True)
    assert steps.observations[0].shape == (2, 3, 2)


class Table(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (3, 2))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros((3, 2), np.float32), {}


@pytest.mark.parametrize("final", [None, np.full(2, None, object)])
def test_missing_final_observations_are_reported(final):
    group = GymnasiumGroup(TwoInstances(AutoresetMode.SAME_STEP, final), "B", "Given")
    group.reset()
    group.step(zeros())

    with pytest.raises(BrokenEnvironmentError, match=r"Given: .*infos\['final_obs'\]"):
        group.step(zeros())


def test_an_unstated_autoreset_mode_is_taken_for_next_step_and_warned_of(caplog):
    group = GymnasiumGroup(TwoInstances(None), "B", "Given")
    group.reset()
    group.step(zeros())

    ending = group.step(zeros()).steps["B"]
    first = group.step(zeros(1)).steps["B"]

    assert "Given has no autoreset mode" in caplog.text
    assert ending.agent_ids.tolist() == [0, 1]
    assert (ending.ended, first.ended) == (1, 0)
    assert first.rewards.tolist() == [0, 3]


def test_an_unknown_autoreset_mode_is_refused_and_the_environment_closed():
    envs = TwoInstances("Sometimes")

    with pytest.raises(StageError, match=r"Given: metadata\['autoreset_mode'\] is 'Sometimes'; expected"):
        GymnasiumGroup(envs, "B", "Given")
    assert envs.closings == 1


def test_an_ending_in_the_step_that_resets_is_reported():
    group = GymnasiumGroup(TwoInstances(AutoresetMode.NEXT_STEP, over_on_reset=True), "B", "Given")
    group.reset()
    group.step(zeros())
    group.step(zeros())

    with pytest.raises(BrokenEnvironmentError, match="instance 0 ended an episode in the step that should have reset"):
        group.step(zeros(1))


@pytest.mark.parametrize("call", ["reset", "step", "render", "close"])
def test_an_environment_that_raises_is_named_with_the_call(call, monkeypatch):
    envs = TwoInstances(AutoresetMode.NEXT_STEP)
    envs.render_mode = "rgb_array"
    group = GymnasiumGroup(envs, "B", "Gymnasium environment 'Mine-v0'")
    group.reset()

    def fail(*args, **kwargs):
        raise KeyError("wheel")

    monkeypatch.setattr(envs, call, fail)

    with pytest.raises(
        BrokenEnvironmentError, match=rf"^Gymnasium environment 'Mine-v0': its {call}\(\) raised KeyErr"
    ) as c:
        getattr(group, call)(*([zeros()] if call == "step" else []))
    assert isinstance(c.value.__cause__, KeyError)
    monkeypatch.undo()
    group.close()


# Real environments


def play(group, seed, ticks, on_tick):
    """Random play; `on_tick` is called with the rows of each tick."""
    random = np.random.default_rng(seed)
    steps = group.reset(seed).steps["B"]
    spec = group.behavior_specs["B"].actions
    for _ in range(ticks):
        d = len(steps.agent_ids) - steps.ended
        continuous = random.uniform(-1, 1, (d, spec.continuous_size)).astype(np.float32)
        discrete = random.integers(0, np.array(spec.discrete_branches, int), (d, len(spec.discrete_branches)))
        steps = group.step({"B": ActionBatch(continuous, discrete.astype(np.int32))}).steps["B"]
        on_tick(steps)


def real(env_id, num_envs, **options):
    name = f"Gymnasium environment {env_id!r}"
    return GymnasiumGroup(make_vector(env_id, num_envs, options, name), "B", name)


@pytest.mark.parametrize(("env_id", "limit"), [("Pendulum-v1", 200), ("MountainCar-v0", 200)])
def test_a_time_limit_truncates_and_does_not_terminate(env_id, limit):
    group = real(env_id, 2)
    ends = []

    def on_tick(steps):
        if steps.ended:
            ends.append((tick[0], steps.terminated.tolist(), steps.truncated.tolist()))
            final, first = np.split(steps.observations[0], 2)
            assert (final != first).any(axis=1).all()
        tick[0] += 1

    tick = [1]
    play(group, 0, 2 * limit, on_tick)

    assert ends == [(limit, [False] * 2, [True] * 2), (2 * limit, [False] * 2, [True] * 2)]
    group.close()


def test_taxi_gives_masks_and_one_hot_observations():
    group = real("Taxi-v4" if "Taxi-v4" in gymnasium.registry else "Taxi-v3", 3)  # as its version of Gymnasium has it
    steps = group.reset(0).steps["B"]
    spec = group.behavior_specs["B"]

    assert spec.actions.masked
    assert spec.observations[0].shape == (500,)
    assert steps.observations[0].sum(axis=1).tolist() == [1, 1, 1]
    for _ in range(20):
        allowed = steps.action_masks.argmax(axis=1).astype(np.int32)[:, None]
        steps = group.step({"B": ActionBatch(np.empty((3, 0), np.float32), allowed)}).steps["B"]
        assert steps.action_masks.shape == (3, 6)
        assert not steps.action_masks.all()
    group.close()


@pytest.mark.parametrize("options", [{}, {"vectorization_mode": "sync"}])
def test_the_same_seed_gives_the_same_run(options):
    runs = []
    for _ in range(2):
        group = real("CartPole-v1", 3, **options)
        seen = []
        play(group, 11, 60, lambda steps, seen=seen: seen.append(steps.observations[0].tolist()))
        runs.append(seen)
        group.close()

    assert runs[0] == runs[1]


@pytest.mark.lengthy
@pytest.mark.parametrize("options", [{}, {"vectorization_mode": "sync"}])
def test_a_single_instance_can_be_rendered(options):
    group = real("CartPole-v1", 2, render_mode="rgb_array", **options)
    group.reset(0)

    picture = group.render(1)

    assert picture.shape == (400, 600, 3)
    assert picture.dtype == np.uint8
    assert len(np.unique(picture @ np.array([1, 256, 65536]))) > 2, "colours"
    group.close()


def test_a_picture_that_lacks_opengl_says_what_mujoco_needs(monkeypatch):
    envs = TwoInstances(AutoresetMode.NEXT_STEP)
    envs.render_mode = "rgb_array"
    group = GymnasiumGroup(envs, "B", "Mine")

    def fail():
        raise RuntimeError("an OpenGL platform library has not been loaded into this process")

    monkeypatch.setattr(envs, "render", fail)
    with pytest.raises(BrokenEnvironmentError, match=r"its render\(\) raised RuntimeError: .*MUJOCO_GL=egl"):
        group.render()


def test_a_picture_of_an_environment_made_without_one_is_refused():
    group = real("CartPole-v1", 2)
    with pytest.raises(
        StageError, match=r"render_mode None; to get images, set environment\.options: \{render_mode: rgb"
    ):
        group.render()
    group.close()


class Body(gymnasium.Env[Any, Any]):
    """Acts with parts that have names, and forbids some choices by these names."""

    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Dict(arm=spaces.Dict(grip=spaces.Discrete(2), turn=spaces.Box(0, 4)), legs=spaces.Discrete(3))

    def reset(self, *, seed=None, options=None):
        self.acts = []
        return np.zeros(1, np.float32), {"action_mask": {"legs": np.array([0, 1, 1], np.int8)}}

    def step(self, action):
        assert action in self.action_space
        self.acts.append(action)
        mask = {"arm": {"grip": np.array([1, 0], np.int8), "turn": None}}
        return np.zeros(1, np.float32), 0.0, False, False, {"action_mask": mask}


def test_the_parts_of_a_dict_action_have_names_and_masks():
    envs = [Body(), Body()]
    group = GymnasiumGroup(SyncVectorEnv([lambda: envs[0], lambda: envs[1]]), "B", "Env")
    first = group.reset().steps["B"]
    actions = group.behavior_specs["B"].actions
    assert (actions.continuous_heads, actions.branch_heads) == (("arm.turn",), ("arm.grip", "legs"))
    assert first.action_masks.astype(int).tolist() == [[1, 1, 0, 1, 1]] * 2

    decided = ActionBatch(np.array([[-1.0], [0.5]], np.float32), np.array([[1, 2], [0, 1]], np.int32))
    second = group.step({"B": decided}).steps["B"]

    assert [env.acts[0]["arm"]["turn"].tolist() for env in envs] == [[0.0], [3.0]]
    assert [(env.acts[0]["arm"]["grip"], env.acts[0]["legs"]) for env in envs] == [(1, 2), (0, 1)]
    assert second.action_masks.astype(int).tolist() == [[1, 0, 1, 1, 1]] * 2
