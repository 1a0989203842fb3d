"""Minari's episodes as demonstrations."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces

from headrace.queues.specs import ActionSpec
from headrace.stages.errors import StageError
from headrace.stages.trainer.imitation.loading import load_demonstrations, read_minari

OBSERVED = spaces.Box(-np.inf, np.inf, (2,))


def episode(actions, terminated=False):
    steps = len(actions)
    return SimpleNamespace(
        observations=np.arange(2.0 * (steps + 1)).reshape(-1, 2),
        actions=np.array(actions),
        rewards=np.arange(steps, dtype=np.float64),
        terminations=np.array([False] * (steps - 1) + [terminated]),
        truncations=np.array([False] * (steps - 1) + [not terminated]),
    )


@pytest.fixture
def of(monkeypatch):
    """Reads episodes as if Minari had them as a data set."""

    def read(action_space, episodes, observed=OBSERVED):
        found = SimpleNamespace(
            observation_space=observed, action_space=action_space, iterate_episodes=lambda: iter(episodes)
        )
        monkeypatch.setitem(sys.modules, "minari", SimpleNamespace(load_dataset=lambda _: found))
        return read_minari("minari:demo", "Test")

    return read


def test_an_episode_has_one_observation_more_than_steps(of):
    found = of(spaces.Discrete(3), [episode([0, 2]), episode([1], terminated=True)])
    assert found.observations[0].tolist() == [[0, 1], [2, 3], [0, 1]]
    assert found.final_observations[0].tolist() == [[4, 5], [2, 3]]
    assert found.lengths.tolist() == [2, 1]
    assert found.terminated.tolist() == [False, True]
    assert found.rewards.tolist() == [0, 1, 0]
    assert found.starts_episode.all()


def test_bounded_actions_are_scaled_to_one_and_unbounded_ones_left_as_they_are(of):
    space = spaces.Box(np.array([-2, 10, -np.inf], np.float32), np.array([2, 20, np.inf], np.float32))
    found = of(space, [episode([[2.0, 10.0, 7.0], [-1.0, 17.5, -9.0]])])
    assert found.spec.actions == ActionSpec(3, unbounded=(2,))
    np.testing.assert_allclose(found.continuous, [[1.0, -1.0, 7.0], [-0.5, 0.5, -9.0]])


def test_choices_count_from_zero(of):
    assert of(spaces.Discrete(3, start=5), [episode([5, 7])]).choices.tolist() == [[0], [2]]
    found = of(spaces.MultiDiscrete([3, 2], start=[1, 0]), [episode([[3, 1], [1, 0]])])
    assert found.choices.tolist() == [[2, 1], [0, 0]]
    assert found.spec.actions.discrete_branches == (3, 2)


def test_unsupported_spaces_are_refused(of):
    with pytest.raises(StageError, match=r"demo': its observation space is Box.*only reads one-dimensional Box"):
        of(spaces.Discrete(2), [episode([0])], spaces.Box(0, 1, (3, 8, 8)))
    with pytest.raises(StageError, match=r"demo': its action space is MultiBinary\(2\)"):
        of(spaces.MultiBinary(2), [episode([[0, 1]])])
    with pytest.raises(StageError, match="demo': the dataset has no steps"):
        of(spaces.Discrete(2), [])


def test_a_data_set_on_this_machine_is_read_by_its_id(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    made = episode([[2.0], [-1.0]])
    buffer = pytest.importorskip("minari.data_collector").EpisodeBuffer(
        **{
            name: list(getattr(made, name))
            for name in ("observations", "actions", "rewards", "terminations", "truncations")
        }
    )
    minari.create_dataset_from_buffers(
        dataset_id="test/expert-v0", buffer=[buffer], observation_space=OBSERVED, action_space=spaces.Box(-2, 2, (1,))
    )
    assert load_demonstrations("minari:test/expert-v0", "Test").continuous.tolist() == [[1], [-0.5]]
    with pytest.raises(
        StageError, match=r"the dataset is not on this machine; download it first: minari download test/other-v0"
    ):
        load_demonstrations("minari:test/other-v0", "Test")


def test_without_minari_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(
        StageError,
        match=r"Test: demo_path 'minari:x': Minari or one of its extras is not installed; run: pip install \"minari\[hdf5,hf\]\"",
    ):
        load_demonstrations("minari:x", "Test")
