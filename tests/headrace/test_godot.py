"""`headrace.godot.GodotEnv`: the synchronous interface of Godot RL Agents, on a game that checks what it is sent."""

from __future__ import annotations

import socket

import numpy as np
import pytest
from godot_runs import build_in

from headrace.godot import GodotEnv, GodotEnvError


@pytest.fixture
def opened(tmp_path):
    """Makes environments, which are closed at the end."""
    made = []

    def make(**options):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        made.append(GodotEnv(str(build_in(tmp_path)), port, **{"agents": 3, **options}))
        return made[-1]

    yield make
    for env in made:
        env.close()


def test_steps_are_lists_by_agent(opened):
    env = opened(game="switch", seed=5)
    assert env.num_envs == 3
    assert env.agent_policy_names == ["Agent"] * 3
    assert env.observation_space["obs"].shape == (2,)
    observations, infos = env.reset()
    assert infos == [{}] * 3
    seen = [int(observed["obs"][0]) for observed in observations]
    observations, rewards, terminated, truncated, infos = env.step([np.array(seen)])
    assert rewards == [1.0] * 3
    assert terminated == truncated == [False] * 3
    assert [len(observed["obs"]) for observed in observations] == [2, 2, 2]
    assert infos == [{}] * 3


def test_agents_end_at_different_times_with_their_infos(opened):
    env = opened(game="switch")
    env.reset()
    ends = []
    for _ in range(10):
        _, _, terminated, _, infos = env.step([[0, 0, 0]])
        ends.append(terminated)
        assert all(("is_success" in info) == done for info, done in zip(infos, terminated, strict=True))
    assert np.sum(ends, axis=0).tolist() == [1, 1, 1]


def test_actions_come_by_key_or_by_agent_in_the_games_order(opened):
    env = opened(game="mixed")
    assert list(env.action_spaces[0]) == ["push", "jump"]
    env.reset()
    for _ in range(3):
        sampled = [env.action_space.sample() for _ in range(3)]
        env.step(sampled, order_ij=True)
        env.step(list(zip(*sampled, strict=True)))
        env.step([space.sample() for space in env.action_spaces], order_ij=True)
    with pytest.raises(ValueError, match="none for the key 'jump'"):
        env.step([{"push": np.zeros(1)}] * 3, order_ij=True)
    env.step([np.full((3, 1), 0.5, np.float32), np.array([0, 1, 0], np.int32)])


def test_a_converted_action_is_one_array(opened):
    env = opened(game="mixed", convert_action_space=True)
    assert env.action_space.shape == (2,)
    env.reset()
    _, rewards, *_ = env.step(np.array([[0.5, 1.0], [0.5, -1.0], [-0.5, 0.0]], np.float32))
    assert len(rewards) == 3
    choices = opened(game="switch", convert_action_space=True)
    assert choices.action_space.nvec.tolist() == [2]
    choices.reset()
    choices.step(np.array([[0], [1], [1]]))


def test_pictures_have_their_pixels_in_place(opened):
    env = opened(game="picture", show_window=True)
    space = env.observation_space["camera_2d"]
    assert space.shape == (3, 36, 36)
    observations, _ = env.reset()
    for observed in observations:
        picture = observed["camera_2d"]
        assert space.contains(picture)
        halves = picture[:, :, :18], picture[:, :, 18:]
        assert sorted(half.min() for half in halves) == [0, 255]
        assert all((half == half[0, 0, 0]).all() for half in halves)


def test_methods_of_the_agents_are_called(opened):
    env = opened(game="switch")
    assert env.call("anything") == ["anything"] * 3


def test_older_addons_serve_as_well(opened):
    env = opened(generation="size")
    assert env.agent_policy_names == ["shared_policy"] * 3
    env.reset()
    assert env.step([[0, 0, 0]])[4] == [{}] * 3


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("exit0", "has closed the connection; it ended with return code 0"),
        ("exit5", "has closed the connection; it ended with return code 5"),
        ("hang", "has not answered within 1 s"),
        ("close", "has closed the connection"),
        ("cut", "has closed the connection; it ended with return code 1"),
        ("garbage", "has sent what is no JSON"),
        ("binary", "its length would be 4,294,967,295 bytes"),
        ("type", "type 'surprise', expected 'step'"),
        ("nan", "agent 0 has nan at index 0 of the observation 'obs'"),
        ("null", r"agent 0 has null \(NaN in Godot, or nothing\) at index 0"),
        ("few", "has sent 2 entries as 'obs', expected one for each of 3 agents"),
        ("reward", "agent 0 has the reward null"),
    ],
)
def test_what_goes_wrong_is_named_and_the_game_ended(opened, monkeypatch, fault, message):
    monkeypatch.setattr(GodotEnv, "DEFAULT_TIMEOUT", 1 if fault == "hang" else 30)
    env = opened(fault=fault, fault_at=2)
    env.reset()
    env.step([[0, 0, 0]])
    with pytest.raises(GodotEnvError, match=message):
        env.step([[0, 0, 0]])
    env.close()
    assert env.proc.returncode is not None
    with pytest.raises(GodotEnvError, match="make a new one"):
        env.reset()


def test_a_second_answer_is_refused(opened):
    env = opened(fault="twice", fault_at=1)
    env.reset()
    with pytest.raises(GodotEnvError, match="answers nothing"):
        for _ in range(200):  # the second answer comes with the first one, or later
            env.step([[0, 0, 0]])


def test_a_game_that_ends_before_it_connects_is_named(opened):
    with pytest.raises(GodotEnvError, match="ended with return code 4 before it had connected"):
        opened(fault="start", status=4)


@pytest.mark.lengthy
def test_a_game_that_does_not_connect_is_ended(opened, monkeypatch):
    monkeypatch.setattr(GodotEnv, "DEFAULT_TIMEOUT", 1)
    with pytest.raises(GodotEnvError, match="no game has connected to port .* within 1 s.*Sync node"):
        opened(fault="mute")


def test_a_missing_game_and_a_taken_port_are_named(tmp_path):
    with pytest.raises(GodotEnvError, match="no Godot executable at"):
        GodotEnv(str(tmp_path / "nothing"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(GodotEnvError, match="is in use by another program"):
            GodotEnv(port=taken.getsockname()[1])


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ([], "none for the key 'push'"),
        ([np.zeros((3, 1))], "none for the key 'jump'"),
        ([np.zeros((3, 2)), [0, 0, 0]], "key 'push' have the shape .* expected 1 numbers for each of 3 agents"),
        ([np.zeros((3, 1)), [0, 0]], "key 'jump' have the shape .* expected one whole number"),
        ([np.full((3, 1), np.nan), [0, 0, 0]], "a number is not finite"),
    ],
)
def test_actions_that_do_not_fit_are_refused_before_the_game_sees_them(opened, action, message):
    env = opened(game="mixed")
    env.reset()
    with pytest.raises(ValueError, match=message):
        env.step(action)
    env.step([np.zeros((3, 1)), [0, 0, 0]])


def test_without_a_speedup_the_scenes_own_counts(opened, capfd):
    opened()
    assert "--speedup" not in capfd.readouterr().out
    opened(speedup=8)
    assert "--speedup=8" in capfd.readouterr().out
