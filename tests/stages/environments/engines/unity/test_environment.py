"""Unity for scripts, against the stand-in client: ML-Agents' low-level interface."""

from __future__ import annotations

import functools
import socket

import numpy as np
import pytest
from unity_runs import BUILD, PlayedEnvironments, reports

from headrace.stages.environments.engines.unity.environment import UnityEnvironment
from headrace.stages.environments.engines.unity.errors import (
    UnityActionException,
    UnityCommunicationException,
    UnityCommunicatorStoppedException,
    UnityEnvironmentException,
    UnityException,
    UnityObservationException,
    UnitySideChannelException,
    UnityTimeOutException,
    UnityWorkerInUseException,
)
from headrace.stages.environments.engines.unity.side_channels import EngineConfigurationChannel, StatsSideChannel
from headrace.stages.environments.engines.unity.specs import (
    ActionSpec,
    ActionTuple,
    DimensionProperty,
    ObservationType,
)

pytestmark = pytest.mark.lengthy

SIMPLE = "Simple?team=0"


@pytest.fixture
def play(tmp_path):
    """Plays the stand-in's scenes in this process."""
    played = PlayedEnvironments()
    yield functools.partial(played, "--report", tmp_path)
    played.close()


@pytest.fixture
def unity(tmp_path):
    """Starts the stand-in as a program, on any free port."""
    begun = []

    def start(*arguments, **options):
        options = {"base_port": 0, "timeout_wait": 30, "log_folder": str(tmp_path), **options}
        args = [*map(str, arguments), "--report", str(tmp_path)]
        begun.append(UnityEnvironment(str(BUILD), additional_args=args, **options))
        return begun[-1]

    yield start
    for env in begun:
        env.close()


def goal_of(decisions):
    return np.sign(decisions.obs[0][:, :1])


def test_a_script_plays_to_the_end_of_episodes(play, tmp_path):
    env = play("--agents", 3)
    assert dict(env.behavior_specs) == {}
    env.reset()
    (spec,) = env.behavior_specs.values()
    assert spec.action_spec == ActionSpec.create_continuous(1)
    ended = 0
    for _ in range(20):
        decisions, endings = env.get_steps(SIMPLE)
        ended += len(endings)
        assert not endings.interrupted.any()
        if len(endings):
            assert (endings.reward > 1).all()
        env.set_actions(SIMPLE, ActionTuple(continuous=goal_of(decisions)))
        env.step()
    assert ended >= 6
    env.close()
    (report,) = reports(tmp_path)
    assert report["returncode"] == 0
    assert report["agent_steps"] == 60


def test_the_first_step_resets_and_later_steps_need_no_actions(play, tmp_path):
    env = play("--agents", 2, "--branches", 2, 3, "--continuous", 1)
    env.step()
    env.step()
    decisions, _ = env.get_steps(SIMPLE)
    assert len(decisions) == 2
    env.close()
    (report,) = reports(tmp_path)
    assert (report["resets"], report["agent_steps"]) == (1, 2)


def test_steps_are_mappings_by_agent(play):
    env = play("--agents", 2, "--branches", 2, 3, "--mask")
    env.reset()
    decisions, endings = env.get_steps(SIMPLE)
    first, second = decisions
    assert decisions.agent_id_to_index == {first: 0, second: 1}
    step = decisions[second]
    assert step.agent_id == second
    assert [mask.shape for mask in step.action_mask] == [(2,), (3,)]
    assert np.array_equal(step.obs[0], decisions.obs[0][1])
    assert not step.action_mask[0].any(), "true = forbidden"
    assert len(endings) == 0
    with pytest.raises(KeyError, match="agent 99 is not in these steps"):
        decisions[99]


def test_behaviors_stand_in_the_order_in_which_unity_announced_them(play):
    names = ["Gull", "Auk", "Tern", "Crow", "Wren", "Rook", "Knot", "Swan"]
    env = play("--behaviors", *names)
    env.reset()
    announced = [name.partition("?")[0] for name in env.behavior_specs]
    assert announced == names


def test_actions_can_be_set_for_single_agents_that_request_a_decision(play):
    env = play("--agents", 2)
    env.reset()
    before, _ = env.get_steps(SIMPLE)
    env.set_actions(SIMPLE, ActionTuple(np.zeros((2, 1), np.float32)))
    env.set_action_for_agent(SIMPLE, before.agent_id[1], ActionTuple(np.ones((1, 1), np.float32)))
    env.step()
    with pytest.raises(UnityActionException, match="agent 77 does not request a decision"):
        env.set_action_for_agent(SIMPLE, 77, ActionTuple(np.ones((1, 1), np.float32)))


def test_pictures_are_floats_from_0_to_1_and_specs_say_what_dimensions_are(play):
    env = play("--scene", "visual", "--vectors", 1, "--goal-signal")
    env.reset()
    vector, picture = env.behavior_specs[SIMPLE].observation_specs
    assert (vector.shape, vector.observation_type) == ((1,), ObservationType.GOAL_SIGNAL)
    assert picture.shape == (3, 20, 20)
    assert picture.dimension_property == (
        DimensionProperty.NONE,
        DimensionProperty.TRANSLATIONAL_EQUIVARIANCE,
        DimensionProperty.TRANSLATIONAL_EQUIVARIANCE,
    )
    decisions, _ = env.get_steps(SIMPLE)
    assert decisions.obs[1].shape == (1, 3, 20, 20)
    assert decisions.obs[1].dtype == np.float32
    assert set(np.unique(decisions.obs[1])) <= {0.0, 1.0}


def test_side_channels_send_and_receive(play, tmp_path):
    engine, stats = EngineConfigurationChannel(), StatsSideChannel()
    engine.set_configuration_parameters(time_scale=4.0)
    env = play("--stats", side_channels=[engine, stats])
    env.reset()
    for _ in range(7):
        decisions, _ = env.get_steps(SIMPLE)
        env.set_actions(SIMPLE, ActionTuple(goal_of(decisions)))
        env.step()
    assert "Client/Sum" in stats.get_and_reset_stats()
    env.close()
    assert reports(tmp_path)[0]["engine"] == {"time_scale": [4.0]}


def test_wrong_actions_say_what_was_expected(play):
    env = play("--agents", 2)
    env.reset()
    with pytest.raises(UnityActionException, match=r"got continuous actions of shape \(1, 1\).*expected \(2, 1\)"):
        env.set_actions(SIMPLE, ActionTuple(np.zeros((1, 1), np.float32)))
    with pytest.raises(UnityActionException, match=r"unknown behaviour 'Simple'; the behaviours are: Simple\?team=0"):
        env.get_steps("Simple")


@pytest.mark.parametrize(
    ("trouble", "expected", "says"),
    [
        ("wrong-observation", UnityObservationException, "numbers; expected"),
        ("garbage", UnityCommunicationException, "violates the protocol"),
        ("nan-reward", UnityCommunicationException, "its reward is nan"),
        ("unknown-behavior", UnityCommunicationException, "not announced"),
        ("stop", UnityCommunicatorStoppedException, "closed the connection"),
    ],
)
def test_each_fault_raises_the_exception_of_ml_agents(play, trouble, expected, says):
    env = play("--misbehave", trouble, "--at-step", 3)
    with pytest.raises(expected, match=says):
        for _ in range(5):
            env.step()
    assert issubclass(expected, UnityException)


@pytest.mark.parametrize(
    ("trouble", "expected", "says"),
    [
        ("die-mid-step", UnityEnvironmentException, "SIGKILL"),
        ("hang", UnityTimeOutException, "within 2 s"),
    ],
)
def test_death_and_timeout_raise_the_exceptions_of_ml_agents(unity, trouble, expected, says):
    env = unity("--misbehave", trouble, "--at-step", 3, timeout_wait=2 if trouble == "hang" else 30)
    with pytest.raises(expected, match=says):
        for _ in range(5):
            env.step()


def test_a_failed_start_gives_the_reason(unity, tmp_path):
    with pytest.raises(UnityEnvironmentException, match="worker_id is 1, but there is only one Unity Editor"):
        UnityEnvironment(worker_id=1)
    with pytest.raises(UnityEnvironmentException, match="no executable"):
        UnityEnvironment(str(tmp_path / "none"))
    with pytest.raises(UnitySideChannelException, match="have the same id"):
        unity(side_channels=[EngineConfigurationChannel(), EngineConfigurationChannel()])
    with socket.socket() as busy:
        busy.bind(("", 0))
        busy.listen()
        with pytest.raises(UnityWorkerInUseException):
            unity(base_port=busy.getsockname()[1])
    with pytest.raises(UnityEnvironmentException, match=r"speaks version 2\.0\.0"):
        unity("--communication-version", "2.0.0")


def test_a_closed_environment_refuses_steps_and_can_be_closed_again(play):
    env = play()
    env.reset()
    env.close()
    env.close()
    with pytest.raises(UnityEnvironmentException, match="was closed"):
        env.step()


def test_actions_may_have_either_part():
    assert ActionTuple().continuous.shape == (0, 0)
    assert ActionTuple(discrete=np.zeros((3, 2))).continuous.shape == (3, 0)
    both = ActionSpec.create_hybrid(2, (3, 4))
    assert both.random_action(5).continuous.shape == (5, 2)
    assert (both.random_action(50).discrete < [3, 4]).all()
    assert both.empty_action(5).discrete.shape == (5, 2)
    assert (both.is_discrete(), both.is_continuous(), both.discrete_size) == (False, False, 2)
    assert ActionSpec.create_discrete((2,)).is_discrete()
    assert ActionSpec.create_continuous(2).random_action(3).discrete.shape == (3, 0)
