import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.stages.trainer.bc import held_out


def of(agents, episodes, seed=0, share=0.1):
    return held_out(np.asarray(agents, np.int64), np.asarray(episodes, np.int64), seed, share)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**40), st.integers(0, 2**63 - 1))
def test_an_episode_is_judged_alone_and_always_the_same(agent, episode, seed):
    among_others = of([3, agent, 4], [9, episode, 1], seed, 0.3)
    assert of([agent], [episode], seed, 0.3)[0] == among_others[1]


@pytest.mark.parametrize("share", [0.0, 0.05, 0.1, 0.5, 0.9])
def test_the_held_out_share_of_many_episodes_is_the_configured_one(share):
    agents, episodes = np.divmod(np.arange(40_000), 20)
    assert of(agents, episodes, share=share).mean() == pytest.approx(share, abs=0.005)


def test_another_seed_and_another_agent_hold_out_others():
    episodes = np.arange(100)
    chosen = [of([agent] * 100, episodes, seed).tolist() for agent, seed in ((0, 0), (0, 1), (1, 0))]
    assert chosen[0] != chosen[1] != chosen[2] != chosen[0]
