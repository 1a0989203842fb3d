"""What `--validate` says of the environment that would be run."""

from __future__ import annotations

import pytest

from headrace.config import RunConfig
from headrace.pipeline.command.description import describe


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({}, "environment: the Unity Editor, on port 5004"),
        ({"env_settings": {"env_path": "a/Game"}}, "environment: unity a/Game, 1 instance per actor, on port 5005"),
        (
            {"env_settings": {"env_path": "Game", "num_envs": 3, "base_port": 6000}},
            "environment: unity Game, 3 instances per actor, on ports 6000 to 6002",
        ),
        (
            {"env_settings": {"env_path": "Game", "num_envs": 3}, "pipeline": {"hosts": {"actors": {"replicas": 2}}}},
            "environment: unity Game, 3 instances per actor, on ports 5005 to 5010",
        ),
        (
            {"env_settings": {"env_path": "Game", "num_envs": 3, "base_port": 6000}, "evaluation": {"every": 9}},
            "environment: unity Game, 3 instances per actor and 3 for evaluation, on ports 6000 to 6005",
        ),
        (
            {"env_settings": {"env_path": "Game", "base_port": 0}},
            "environment: unity Game, 1 instance per actor, on any free ports",
        ),
        (
            {"environment": {"kind": "mlagents", "factory": "mine:make", "num_envs": 2}},
            "environment: mlagents mine:make, 2 instances per actor",
        ),
    ],
)
def test_the_description_names_what_is_played_and_where(sections, said):
    assert f"  {said}" in describe(RunConfig.from_plain({"behaviors": {"B": {}}, **sections})).splitlines()


@pytest.mark.parametrize(("replicas", "said"), [(1, "1 shard"), (2, "2 shards")])
def test_the_description_counts_the_shards_of_a_replay_buffer(replicas, said):
    hosts = {"replay": {"kind": "process", "replicas": replicas}}
    plain = {"behaviors": {"B": {"trainer_type": "sac"}}, "pipeline": {"hosts": hosts}}
    assert f"  replay buffer in {said} (process)" in describe(RunConfig.from_plain(plain)).splitlines()


@pytest.mark.parametrize(
    ("block", "torch_settings", "said"),
    [
        ({}, {}, "manual if it observes only vectors and learns on a CPU, otherwise autograd"),
        ({}, {"acceleration": "none"}, "autograd, as set by torch_settings.acceleration"),
        ({}, {"device": "cuda:1"}, "autograd, because it learns on cuda:1"),
        ({"network_settings": {"memory": {}}}, {}, "autograd, because it has a memory"),
        ({"network_settings": {"gsde": {}}}, {}, "autograd, because it has gSDE noise"),
        ({"network_settings": {"network": "mine:Net"}}, {}, "autograd, because it has a custom network"),
        (
            {"trainer_type": "sac"},
            {},
            "manual if it observes only vectors and has no discrete actions and learns on a CPU, otherwise autograd",
        ),
    ],
)
def test_the_description_says_how_gradients_are_found(block, torch_settings, said):
    config = RunConfig.from_plain({"behaviors": {"B": block}, "torch_settings": torch_settings})
    assert f"  gradients: {said}" in describe(config).splitlines()


@pytest.mark.parametrize("trainer_type", ["poca", "mine:Trainer"])
def test_the_description_says_nothing_of_gradients_if_there_is_one_way(trainer_type):
    assert "gradients" not in describe(RunConfig.from_plain({"behaviors": {"B": {"trainer_type": trainer_type}}}))
