"""What a factory of kind `mlagents` is called with; and our own Unity environment on the other side."""

from __future__ import annotations

import pytest
from environment_requests import request_of
from low_level_env import GuessEnv
from unity_runs import BUILD, reports

from headrace.config import EngineSettings, EnvironmentSettings
from headrace.queues.messages import ActionBatch
from headrace.stages.environments.engines.unity.environment import UnityEnvironment
from headrace.stages.environments.low_level import make_low_level_group
from headrace.stages.environments.parameters import EnvironmentParameters, EpisodeParameters
from headrace.stages.environments.protocol import StatisticValues
from headrace.stages.errors import BrokenEnvironmentError, LoadError, StageError

MADE = []


def guess(**options):
    MADE.append(GuessEnv(**options))
    return MADE[-1]


def numbered(agents, seed, worker_id):
    return guess(agents=agents, seed=seed, worker_id=worker_id)


def through_unity(folder, worker_id, seed, side_channels, arguments=()):
    return UnityEnvironment(
        str(BUILD),
        worker_id=worker_id,
        base_port=0,
        seed=seed,
        timeout_wait=30,
        additional_args=["--report", folder, *arguments],
        side_channels=side_channels,
    )


def fails():
    raise OSError("no such motor")


def gives_a_number():
    return 5


def make(factory, num_envs=1, **more):
    settings = EnvironmentSettings(
        kind="mlagents", factory=f"low_level_factories:{factory}", num_envs=num_envs, options=more.pop("options", {})
    )
    return make_low_level_group(request_of(settings, engine_settings=EngineSettings(time_scale=6.0), **more))


@pytest.fixture(autouse=True)
def factories(monkeypatch):
    """This module, under a name by which a configuration can call it."""
    import sys

    monkeypatch.setitem(sys.modules, "low_level_factories", sys.modules[__name__])
    MADE.clear()


def test_each_instance_is_made_with_the_options_its_seed_and_worker_id():
    settings = EnvironmentSettings(
        kind="mlagents", factory="low_level_factories:numbered", num_envs=2, options={"agents": 5}
    )
    make_low_level_group(request_of(settings, seed=100, replica=2))
    made_with = [{name: env.made_with[name] for name in ("agents", "seed", "worker_id")} for env in MADE]
    assert made_with == [{"agents": 5, "seed": 104, "worker_id": 4}, {"agents": 5, "seed": 105, "worker_id": 5}]


def test_a_factory_without_seed_and_worker_id_gets_only_the_options():
    make("guess", 2, options={"length": 7})
    assert [env.made_with["length"] for env in MADE] == [7, 7]


def test_mistakes_say_what_was_expected():
    with pytest.raises(
        StageError, match="environment.options: .* does not accept .*unexpected keyword argument 'size'"
    ):
        make("fails", options={"size": 3})
    with pytest.raises(BrokenEnvironmentError, match="'low_level_factories:fails' raised OSError: no such motor"):
        make("fails")
    with pytest.raises(
        LoadError, match="returned an int, which lacks reset, step, .*behavior_specs; expected an object"
    ):
        make("gives_a_number")
    with pytest.raises(LoadError, match="expected a callable"):
        make("MADE")


@pytest.mark.lengthy
def test_headrace_s_own_unity_environment_is_accepted(tmp_path):
    arguments = ["--agents", "2", "--branches", "3", "--mask", "--stats"]
    made = make("through_unity", 2, options={"folder": str(tmp_path), "arguments": arguments}, replica=1, seed=49)
    parameters = EpisodeParameters()
    parameters.receive(EnvironmentParameters(1, {"step_size": 0.5}))
    made.set_parameters(parameters)
    result = made.reset(0)
    (spec,) = made.behavior_specs.values()
    told = {}
    ended = 0
    for _ in range(12):
        steps = result.steps[spec.behavior_id]
        ended += steps.ended
        assert steps.action_masks[:, :2].all()
        seen = steps.observations[0][steps.ended :, :1]
        result = made.step({spec.behavior_id: ActionBatch(seen[:, :0], (seen > 0).astype("int32"))})
        told |= result.statistics
        if result.steps[spec.behavior_id].ended:
            assert (result.steps[spec.behavior_id].rewards[: result.steps[spec.behavior_id].ended] > 1).all()
    made.close()
    assert ended > 10, "each episode takes two steps"
    assert isinstance(told["Client/Sum"], StatisticValues)
    found = sorted(reports(tmp_path), key=lambda report: report["seed"])
    assert [(report["seed"], report["returncode"]) for report in found] == [(51, 0), (52, 0)]
    assert found[0]["engine"]["time_scale"] == [6.0]
    assert found[0]["parameters"] == {"step_size": 0.5}
