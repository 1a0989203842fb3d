"""`pipeline.inference`: what can't be is refused with a sentence that says why."""

import pytest
from run_configs import cartpole

from headrace.config import ConfigError, RunConfig
from headrace.pipeline.command.description import describe
from headrace.pipeline.common.graph import decides_centrally


def test_policies_decide_in_actors_unless_central_inference_is_set():
    assert not decides_centrally(RunConfig.from_plain(cartpole()))
    config = RunConfig.from_plain(cartpole(pipeline__inference="central"))
    assert decides_centrally(config)
    assert config.pipeline.hosts.inference.kind == "process"
    assert "1 inference host (process): chooses actions for all learning agents" in describe(config)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"pipeline__inference": "centrally"}, "inference: 'centrally'"),
        (
            {"pipeline__inference": "central", "pipeline__deterministic": True},
            "pipeline.inference: 'central' conflicts with 'deterministic: true': the actors in one batch draw random "
            "numbers",
        ),
        ({"pipeline__hosts__inference__kind": "inline"}, "pipeline.hosts.inference: configures the host for central"),
        (
            {"pipeline__inference": "central", "pipeline__hosts__inference__resources": {"gpus": 1}},
            "hosts of kind 'process' can't request resources",
        ),
    ],
)
def test_settings_that_conflict_with_central_inference_are_refused(changes, complaint):
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_plain(cartpole(**changes))
    assert complaint in str(caught.value)


def test_plain_data_of_a_deterministic_run_gives_the_same_configuration_back():
    config = RunConfig.from_plain(cartpole(pipeline__deterministic=True))
    assert RunConfig.from_plain(config.to_plain()).to_plain() == config.to_plain()
