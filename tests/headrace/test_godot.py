"""`headrace.godot.GodotEnv`: the synchronous interface of Godot RL Agents, on a game that checks what it is sent."""

from __future__ import annotations

import json
import socket

import gymnasium
import numpy as np
import pytest
from godot_runs import build_in

from headrace.godot import GodotEnv, GodotEnvError
from headrace.stages.environments.engines.godot.environment import observation_space


class Impatient(GodotEnv):
    """Gives the game a second for each answer."""

    DEFAULT_TIMEOUT = 1


class Terminating(GodotEnv):
    """For wrappers that read nothing else."""

    ENDS_ARE_TERMINATED = True


@pytest.fixture
def opened(tmp_path):
    """Makes environments, which are closed at the end."""
    made = []

    def make(kind=GodotEnv, **options):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        made.append(kind(str(build_in(tmp_path)), port, **{"agents": 3, **options}))
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
    with pytest.raises(ValueError, match="no actions for the key 'jump'"):
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
        ("exit5", "has closed the connection; it ended with return code 5"),
        ("hang", "has not answered within 1 s"),
        ("garbage", "sent invalid JSON"),
        ("nan", "agent 0 has nan at index 0 of the observation 'obs'"),
        ("info", "agent 2 has 'won' as its info; expected a map of keys"),
    ],
)
def test_a_fault_of_the_game_is_reported_and_ends_the_game(opened, fault, message):
    env = opened(Impatient if fault == "hang" else GodotEnv, fault=fault, fault_at=2)
    env.reset()
    env.step([[0, 0, 0]])
    with pytest.raises(GodotEnvError, match=message):
        env.step([[0, 0, 0]])
    env.close()
    assert env.proc.returncode is not None
    with pytest.raises(GodotEnvError, match="create a new one"):
        env.reset()


def test_a_second_answer_is_refused(opened):
    env = opened(fault="twice", fault_at=1)
    env.reset()
    with pytest.raises(GodotEnvError, match="that was not requested"):
        for _ in range(200):  # the second answer comes with the first one, or later
            env.step([[0, 0, 0]])


def test_a_game_that_ends_before_it_connects_is_named(opened):
    with pytest.raises(GodotEnvError, match="ended with return code 4 before it connected"):
        opened(fault="start", status=4)


@pytest.mark.lengthy
def test_a_game_that_does_not_connect_is_ended(opened):
    with pytest.raises(GodotEnvError, match="no game connected to port .* within 1 s.*Sync node"):
        opened(Impatient, fault="mute")


def test_a_missing_game_and_a_taken_port_are_named(tmp_path):
    with pytest.raises(GodotEnvError, match="no executable at"):
        GodotEnv(str(tmp_path / "nothing"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(GodotEnvError, match="can't listen on port .*in use.*pass another port="):
            GodotEnv(port=taken.getsockname()[1])


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ([], "no actions for the key 'push'"),
        ([np.zeros((3, 1))], "no actions for the key 'jump'"),
        ([np.zeros((3, 2)), [0, 0, 0]], "key 'push', the shape is .* expected 1 numbers for each of 3 agents"),
        ([np.zeros((3, 1)), [0, 0]], "key 'jump', the shape is .* expected one whole number"),
        ([np.full((3, 1), np.nan), [0, 0, 0]], "a number is not finite"),
    ],
)
def test_actions_that_do_not_fit_are_refused_before_the_game_sees_them(opened, action, message):
    env = opened(game="mixed")
    env.reset()
    with pytest.raises(ValueError, match=message):
        env.step(action)
    env.step([np.zeros((3, 1)), [0, 0, 0]])


@pytest.mark.lengthy
def test_without_a_speedup_the_scenes_own_counts(opened, capfd):
    opened()
    assert "--speedup" not in capfd.readouterr().out
    opened(speedup=8)
    assert "--speedup=8" in capfd.readouterr().out


def test_an_episode_that_a_time_limit_cuts_is_truncated_and_not_terminated(opened):
    env = opened(game="reach")
    env.reset()
    ends = [env.step([np.zeros((3, 1))])[2:4] for _ in range(10)]
    assert np.sum([truncated for _, truncated in ends], axis=0).tolist() == [1, 1, 1]
    assert not np.any([terminated for terminated, _ in ends])


def test_ends_are_terminated_as_well_if_a_wrapper_reads_nothing_else(opened):
    env = opened(Terminating, game="reach")
    env.reset()
    ends = [env.step([np.zeros((3, 1))])[2:4] for _ in range(10)]
    assert [terminated for terminated, _ in ends] == [truncated for _, truncated in ends]
    assert np.any(ends)


PRESS = {"press": {"size": 2, "action_type": "discrete"}}
OBS = {"obs": {"space": "box", "size": [2]}}


@pytest.mark.parametrize(
    ("announced", "message"),
    [
        ({"action_space": [PRESS, {"press": {"size": 2, "action_type": "multi"}}]}, "agent 1: .*'press' .*'multi'"),
        ({"action_space": [PRESS, {"press": {"action_type": "discrete"}}]}, "agent 1: .*'press' .*a size"),
        ({"action_space": [PRESS, 2]}, "announces 2 as the action_space of agent 1"),
        ({"action_space": {}}, "agent 0: announces no actions"),
        ({"observation_space": [OBS, {"obs": {"space": "disk", "size": [2]}}]}, "agent 1: .*'obs' .*'disk'"),
        ({"observation_space": {"obs": {"space": "repeated", "size": 3}}}, "agent 0: .*'obs' .*fixed number"),
        ({"observation_space": {"cam_2d": {"space": "box", "size": [36, 36]}}}, r"agent 0: .*\[channels, height, w"),
        ({"agent_policy_names": ["a", None]}, "announces None as the agent_policy_names of agent 1"),
    ],
)
def test_spaces_that_are_not_known_are_refused_by_agent_and_key(opened, announced, message):
    with pytest.raises(GodotEnvError, match=message):
        opened(agents=2, announce=json.dumps(announced).replace(" ", ""))


@pytest.mark.parametrize(
    ("observations", "message"),
    [
        ({"obs": {"space": "box", "size": [3]}}, "agent 1 has 2 numbers as the observation 'obs'; expected the 3"),
        ({"seen": {"space": "box", "size": [2]}}, r"agent 1 lacks the observation 'seen' \(it has: obs\)"),
        ({"obs": {"space": "discrete", "size": 2}}, "agent 1 has .* as the observation 'obs'; expected a whole number"),
    ],
)
def test_an_agent_that_observes_what_it_has_not_announced_is_named_at_the_reset(opened, observations, message):
    env = opened(agents=2, announce=json.dumps({"observation_space": [OBS, observations]}).replace(" ", ""))
    with pytest.raises(GodotEnvError, match=f"the game, {message}"):
        env.reset()


def test_agents_may_differ_in_their_spaces(opened):
    moves = [PRESS, {"press": {"size": 3, "action_type": "discrete"}}]
    env = opened(agents=2, announce=json.dumps({"action_space": moves}).replace(" ", ""))
    assert [space["press"].n for space in env.action_spaces] == [2, 3]
    assert [space[0].n for space in env.tuple_action_spaces] == [2, 3]


# One request, one answer: what is sent meanwhile is an error to the strict stand-in, which would say so and exit.


@pytest.mark.parametrize("ask", ["reset", "step", "step_send", "call"])
def test_nothing_is_sent_before_the_last_answer_was_taken(opened, ask):
    env = opened(game="switch", step_ms=50)
    env.reset()
    env.step_send([[0, 0, 0]])
    asked = {"reset": env.reset, "call": lambda: env.call("x")}.get(ask, lambda: getattr(env, ask)([[0, 0, 0]]))
    with pytest.raises(GodotEnvError, match="step_recv before you send anything else"):
        asked()
    assert len(env.step_recv()[0]) == 3
    env.step([[0, 0, 0]])
    with pytest.raises(GodotEnvError, match="step_send before step_recv"):
        env.step_recv()


@pytest.mark.lengthy
def test_closing_during_a_step_ends_the_game_after_its_answer(opened, capfd):
    env = opened(game="switch", step_ms=150)
    env.reset()
    env.step_send([[0, 0, 0]])
    env.close()
    assert env.proc.returncode == 0
    assert "WRONG" not in capfd.readouterr().out


# What scripts and wrappers for Godot RL Agents' class touch.


@pytest.mark.lengthy
def test_actions_are_converted_as_wrappers_do_it(opened):
    env = opened(game="mixed", convert_action_space=True)
    assert env.action_space_processor.action_space == env.action_space
    chosen = np.array([[0.5, 1.0], [0.25, -1.0], [-0.5, 0.5]], np.float32)
    by_key = env.action_space_processor.to_original_dist(chosen)
    assert env.from_numpy(by_key) == [
        {"push": [0.5], "jump": 1},
        {"push": [0.25], "jump": 0},
        {"push": [-0.5], "jump": 1},
    ]
    assert env.from_numpy([[[0.5], 1]] * 3, order_ij=True) == [{"push": [0.5], "jump": 1}] * 3
    plain = opened(game="mixed")
    assert plain.action_space_processor.to_original_dist("as it is") == "as it is"


def test_the_connection_is_available_until_the_environment_is_closed(opened):
    env = opened()
    assert env.connection.getsockname()[1] == env.port
    env.close()
    with pytest.raises(GodotEnvError, match="is closed"):
        env.connection  # noqa: B018


def test_a_game_for_this_system_is_looked_for(opened, tmp_path):
    env = opened()
    env.check_platform(build_in(tmp_path))
    with pytest.raises(GodotEnvError, match="no executable at"):
        env.check_platform(tmp_path / "nothing")


@pytest.mark.parametrize("name", ["_send_as_json", "_get_json_dict", "_process_obs", "_close"])
def test_internal_members_of_the_official_class_can_not_be_overridden(name):
    with pytest.raises(TypeError, match=f"Mine.{name} would never be called"):
        type("Mine", (GodotEnv,), {name: lambda self: None})


@pytest.mark.parametrize(
    ("announced", "low", "high"),
    [({}, -1, 1), ({"low": 0.0, "high": 500.0}, 0, 500), ({"low": [0, -5], "high": [1, 5]}, [0, -5], [1, 5])],
)
def test_a_box_keeps_its_bounds(announced, low, high):
    space = observation_space({"obs": {"space": "box", "size": [2], **announced}})["obs"]
    assert isinstance(space, gymnasium.spaces.Box)
    np.testing.assert_array_equal(space.low, np.broadcast_to(low, 2))
    np.testing.assert_array_equal(space.high, np.broadcast_to(high, 2))


@pytest.mark.parametrize("wrong", ["word", None, [1, 2, 3]])
def test_bounds_that_are_no_numbers_are_refused(wrong):
    with pytest.raises(GodotEnvError, match="the observation 'obs' as .*'low'"):
        observation_space({"obs": {"space": "box", "size": [2], "low": wrong}})


def test_the_order_of_actions_is_said_if_it_is_not_that_of_the_alphabet(opened, capfd):
    opened(game="mixed").close()
    assert "Actions are in the game's order: push, jump; godot-rl" in capfd.readouterr().err
    opened(game="switch").close()
    assert "order" not in capfd.readouterr().err
