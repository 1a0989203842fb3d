"""Single environments in turn give what Gymnasium's own SyncVectorEnv gives, bit for bit."""

from __future__ import annotations

import copy
import zlib
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from headrace.stages.environments.gymnasium.singles import vectorise

REWARDS = [float, np.float64, np.float32, int, lambda reward: np.array(reward, np.float32)]
FLAGS = [bool, np.bool_]
SPACES = [
    spaces.Box(-1, 1, (3,)),
    spaces.Box(-1, 1, (2, 3), np.float64),
    spaces.Box(-1, 1, ()),
    spaces.Box(0, 255, (4, 4, 3), np.uint8),
    spaces.Box(-9, 9, (2,), np.int16),
    spaces.Discrete(5),
    spaces.MultiDiscrete([2, 5]),
    spaces.MultiBinary((2, 2)),
    spaces.Text(5),
    spaces.Sequence(spaces.Box(-1, 1, (2,))),
    spaces.OneOf([spaces.Discrete(3), spaces.Box(-1, 1, (2,))]),
]
COMPOSED = st.recursive(
    st.sampled_from(SPACES),
    lambda parts: (
        st.lists(parts, min_size=1, max_size=3).map(spaces.Tuple)
        | st.dictionaries(st.sampled_from("abc"), parts, min_size=1).map(spaces.Dict)
    ),
    max_leaves=4,
)


class RandomEnv(gymnasium.Env):
    """Draws observations, lengths of episodes and how they end, and rewards the action; ends by the seed alone.

    Args:
        space: of observations and of actions.
        ends: the length of the longest episode.
        reward: makes the type of rewards.
        flag: makes the type of flags.
        held: the arrays that all observations are written into, of several environments too; None: new ones.
    """

    def __init__(self, space, ends, reward, flag, held=None):
        self.observation_space, self.action_space = copy.deepcopy(space), copy.deepcopy(space)
        self.ends, self.reward, self.flag, self.held = ends, reward, flag, held

    def seen(self):
        drawn = self.observation_space.sample()
        if self.held is None or not isinstance(drawn, np.ndarray):
            return drawn
        self.held[...] = drawn
        return self.held

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(1000)))
        self.left = int(self.np_random.integers(1, self.ends + 1))
        return self.seen(), {"left": self.left}

    def step(self, action):
        self.left -= 1
        truncated, terminated = (self.flag(self.left == 0 and self.np_random.random() < 0.6) for _ in range(2))
        self.left += self.left == 0
        reward = self.reward(zlib.crc32(repr(action).encode()) % 1000)
        return self.seen(), reward, terminated, truncated, {"left": self.left}


@pytest.mark.lengthy
@examples(12)
@given(
    space=COMPOSED,
    num_envs=st.integers(1, 4),
    ends=st.integers(1, 5),
    reward=st.sampled_from(REWARDS),
    flag=st.sampled_from(FLAGS),
    hold=st.sampled_from(["nothing", "its own", "one for all"]),
    seed=st.integers(0, 99),
)
def test_single_environments_give_what_gymnasiums_own_vectorisation_gives(
    space, num_envs, ends, reward, flag, hold, seed
):
    none = [None] * num_envs
    arrays = [np.zeros(space.shape, space.dtype) for _ in none] if isinstance(space, spaces.Box) else none
    held = iter({"nothing": none, "its own": arrays, "one for all": arrays[:1] * num_envs}[hold])
    make = partial(RandomEnv, space, ends, reward, flag)
    peer = SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    own = vectorise(make(next(held)), lambda: make(next(held)), num_envs, "Env")
    peer.action_space.seed(seed)

    assert data_equivalence(own.reset(seed=seed)[0], peer.reset(seed=seed)[0], exact=True)
    for _ in range(7):
        actions = peer.action_space.sample()
        observations, *columns, infos = own.step(actions)
        expected, *columns_of_peer, infos_of_peer = peer.step(actions)
        assert data_equivalence(observations, expected, exact=True)
        for column, of_peer in zip(columns, columns_of_peer, strict=True):
            assert np.array(column, of_peer.dtype).tolist() == of_peer.tolist()
        over = np.logical_or(*columns_of_peer[1:])
        assert ("final_obs" in infos) == ("final_obs" in infos_of_peer) == bool(over.any())
        for i in np.flatnonzero(over):
            assert data_equivalence(infos["final_obs"][i], infos_of_peer["final_obs"][i], exact=True)
            assert infos["final_info"][i]["left"] == infos_of_peer["final_info"]["left"][i]
