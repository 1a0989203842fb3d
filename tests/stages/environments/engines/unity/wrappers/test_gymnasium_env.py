"""One agent of a Unity program as a Gymnasium environment: what it sees, does and is told; the rest is refused by name."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from unity_runs import PlayedEnvironments
from unity_said import NAME, Scene, says, spec

from headrace.unity import UnityGymException, UnityToGymWrapper

PICTURE, SET, VECTOR = (3, 4, 5), (6, 2), (2,)


def made(specs, *script, **options):
    """An environment, and the program of which `reset` says what comes first in the script, twice."""
    scene = Scene(specs, script[0], *script)
    return UnityToGymWrapper(scene, **options), scene


def test_an_episode_from_its_reset_to_its_end():
    env, scene = made(
        spec(continuous=2), says({7: 0.5}), says({7: 0.25}, reward=1.0), says(ended={7: 0.75}, reward=2.0)
    )
    assert env.name == NAME
    assert env.action_size == 2
    observation, info = env.reset()
    assert observation.tolist() == [0.5]
    assert list(info) == ["step"]
    observation, reward, terminated, truncated, info = env.step([0.1, -0.2])
    assert (observation.tolist(), reward, terminated, truncated) == ([0.25], 1.0, False, False)
    assert info["step"].agent_id.tolist() == [7]
    assert np.allclose(scene.acted[0][1], [[0.1, -0.2]])
    observation, reward, terminated, truncated, info = env.step(np.zeros(2))
    assert (observation.tolist(), reward, terminated, truncated) == ([0.75], 2.0, True, False)
    assert env.game_over
    with pytest.raises(UnityGymException, match=r"Walker\?team=0: the episode has ended: call reset"):
        env.step(np.zeros(2))
    env.close()
    assert scene.closed == 1


def test_an_interrupted_episode_is_truncated():
    env, _ = made(spec(continuous=1), says({7: 0.0}), says(ended={7: 0.0}, interrupted=True))
    env.reset()
    assert env.step([0])[2:4] == (False, True)


def test_the_environment_waits_for_an_agent_without_requests():
    script = [says(), says({7: 0.5}), says(), says(), says({7: 0.25}), says(), says(ended={7: 0.0})]
    scene = Scene(spec(continuous=1), *script[:2], *script)
    env = UnityToGymWrapper(scene)
    assert env.reset()[0].tolist() == [0.5]
    assert env.step([0])[0].tolist() == [0.25]
    assert env.step([0])[2]
    assert scene.orders == ["reset", "step", "reset", "step", *["step"] * 5]


def test_the_next_episode_may_be_another_agent_s():
    first, second = says({7: 0.0}), says({8: 1.0})
    ended = says({8: 1.0}, ended={7: 0.5})
    scene = Scene(spec(continuous=1), first, first, ended, second, says({8: 0.5}))
    env = UnityToGymWrapper(scene)
    env.reset()
    observation, _, terminated, _, _ = env.step([0])
    assert (observation.tolist(), terminated) == ([0.5], True), "the end, not the next one's beginning"
    assert env.reset()[0].tolist() == [1.0]
    assert env.step([0])[0].tolist() == [0.5]


# What is not one agent of one behaviour.


@pytest.mark.parametrize(
    "script",
    [
        [says({7: 0.0, 8: 0.0})],
        [says({7: 0.0}), says({7: 0.0, 8: 0.0})],
        [says({7: 0.0}), says({8: 0.0})],
        [says({7: 0.0}), says(ended={8: 0.0})],
        [says({7: 0.0}), says(ended={7: 0.0, 8: 0.0})],
    ],
    ids=["at once", "later", "in turn", "seen at its end", "two ends"],
)
def test_a_second_agent_is_refused_with_the_wrapper_for_several(script):
    with pytest.raises(UnityGymException, match=r"(2 agents|agent 8 in addition to agent 7), .*UnityParallelEnv"):
        env, _ = made(spec(continuous=1), *script)
        env.reset()
        env.step([0])


def test_a_second_behaviour_is_refused():
    walks = spec(continuous=1)
    with pytest.raises(UnityGymException, match=r"the behaviours Walker\?team=0, Other, .*UnityAECEnv"):
        UnityToGymWrapper(Scene({NAME: walks, "Other": walks}, says({7: 0.0})))
    env, scene = made(walks, says({7: 0.0}), says({7: 0.0}))
    env.reset()
    scene.behavior_specs = {NAME: walks, "Other": walks}
    with pytest.raises(UnityGymException, match="the behaviours"):
        env.step([0])


def test_an_agent_without_sensors_is_refused():
    sensorless = spec((1,), continuous=1)._replace(observation_specs=[])
    with pytest.raises(UnityGymException, match="it has no observations"):
        made(sensorless, says({7: 0.0}))


# What it sees.


@pytest.mark.parametrize(
    ("shapes", "options", "expected"),
    [
        ([VECTOR, (1,)], {}, spaces.Box(-np.inf, np.inf, (3,))),
        ([VECTOR, PICTURE], {}, spaces.Box(0, 1, PICTURE)),
        ([PICTURE], {"uint8_visual": True}, spaces.Box(0, 255, PICTURE, np.uint8)),
        ([SET, VECTOR], {}, spaces.Box(-np.inf, np.inf, (2,))),
        (
            [VECTOR, PICTURE, SET, (1,), PICTURE],
            {"allow_multiple_obs": True},
            spaces.Tuple(
                [spaces.Box(0, 1, PICTURE)] * 2 + [spaces.Box(-np.inf, np.inf, SET), spaces.Box(-np.inf, np.inf, (3,))]
            ),
        ),
    ],
    ids=str,
)
def test_observations_are_in_their_space(shapes, options, expected):
    env, _ = made(spec(*shapes, continuous=1), says({7: 0.5}), says({7: 0.25}), **options)
    assert env.observation_space == expected
    assert env.observation_space.contains(env.reset()[0])
    assert env.observation_space.contains(env.step([0])[0])


def test_omitted_observations_are_named_once(caplog):
    env, _ = made(spec(VECTOR, PICTURE, continuous=1), says({7: 0.5}))
    env.reset()
    (said,) = caplog.messages
    assert "only one is returned: set allow_multiple_obs=True to get all" in said


def test_bytes_are_rounded_and_shown_as_a_picture():
    env, _ = made(spec(PICTURE, continuous=1), says({7: 254.6 / 255}), uint8_visual=True)
    observation, _ = env.reset()
    assert (observation == 255).all()
    assert np.array_equal(env.visual_obs, observation)
    assert env.render_mode == "rgb_array"
    assert env.render().shape == (4, 5, 3)
    assert env.render().dtype == np.uint8


@pytest.mark.parametrize(("channels", "shown"), [(1, True), (3, True), (2, False), (7, False)])
def test_images_with_1_or_3_channels_can_be_rendered(channels, shown):
    env, _ = made(spec((channels, 4, 5), continuous=1), says({7: 0.5}))
    env.reset()
    assert (env.render() is not None) == shown == (env.render_mode == "rgb_array")
    if shown:
        assert (env.render() == 128).all()


def test_the_seed_of_reset_seeds_np_random_and_warns_that_unity_ignores_it(caplog):
    scene = Scene(spec(continuous=1), *[says({7: 0.0})] * 4)
    env = UnityToGymWrapper(scene)
    env.reset(seed=3)
    drawn = env.np_random.random()
    env.reset(seed=3)
    assert env.np_random.random() == drawn
    env.reset()
    (said,) = caplog.messages
    assert "has no effect in Unity" in said


# What it may do.


@pytest.mark.parametrize(
    ("branches", "options", "mask", "flat"),
    [
        ((3,), {}, [1, 0, 1], [1, 0, 1]),
        ((3, 2), {}, ([1, 0, 1], [0, 1]), [1, 0, 1, 0, 1]),
        ((3, 2), {"flatten_branched": True}, [0, 1, 0, 0, 0, 1], [0, 1, 0, 0, 0, 1]),
    ],
)
def test_masks_have_the_forms_of_sample_and_of_maskable_ppo(branches, options, mask, flat):
    forbidden = [[False, True, False], [True, False]][: len(branches)]
    env, _ = made(spec(branches=branches), says({7: 0.0}, forbidden=forbidden), says(ended={7: 0.0}), **options)
    _, info = env.reset()
    assert repr(plain(info["action_mask"])) == repr(mask)
    assert env.action_masks().tolist() == [bool(each) for each in flat]
    for _ in range(20):
        env.action_space.sample(info["action_mask"])
    assert "action_mask" not in env.step(env.action_space.sample(info["action_mask"]))[4], (
        "nothing is decided at an end"
    )
    assert env.action_masks().any()


def plain(mask):
    return tuple(each.tolist() for each in mask) if isinstance(mask, tuple) else mask.tolist()


def test_the_info_contains_the_group_reward():
    env, _ = made(spec(continuous=1), says({7: 0.0}, group=4), says({7: 0.0}, reward=0.5, group=4))
    env.reset()
    assert env.step([0])[4]["group_reward"] == 5.0


# The stand-in Unity.


@pytest.fixture
def unity():
    """Plays scenes with one agent."""
    played = PlayedEnvironments()
    yield functools.partial(played, "--agents", 1, "--max-steps", 20)
    played.close()


CHECKED = {
    "branches": (("--branches", 2, 3), {}),
    "flattened": (("--branches", 2, 3), {"flatten_branched": True}),
    "bytes": (("--scene", "visual"), {"uint8_visual": True}),
    "several": (("--scene", "visual", "--vectors", 2), {"allow_multiple_obs": True}),
}


UNSAID = pytest.mark.filterwarnings("ignore:.*(infinity|render fps|alternative render)")


@pytest.mark.lengthy
@UNSAID
@pytest.mark.parametrize(("arguments", "options"), CHECKED.values(), ids=CHECKED)
def test_gymnasium_s_own_checker_finds_nothing(unity, arguments, options):
    env = UnityToGymWrapper(unity(*arguments), **options)
    check_env(env, skip_render_check=True, skip_close_check=True)


@pytest.mark.lengthy
@pytest.mark.parametrize("options", [{}, {"flatten_branched": True}])
def test_masks_are_obeyed_over_the_wire(unity, options):
    """The stand-in ends with an error at a choice that it has forbidden."""
    env = UnityToGymWrapper(unity("--branches", 4, 3, "--mask"), **options)
    _, info = env.reset()
    for _ in range(40):
        _, _, terminated, truncated, info = env.step(env.action_space.sample(info["action_mask"]))
        if terminated or truncated:
            _, info = env.reset()
