"""Keys that may be `auto` are left to the run; the configuration holds their defaults until then."""

from __future__ import annotations

import pytest

from headrace.config import ConfigError, RunConfig

GYM = {"kind": "gymnasium", "id": "CartPole-v1"}


def config_of(**sections):
    return RunConfig.from_plain({"behaviors": {"B": {}}, "environment": GYM, **sections})


def open_keys(config):
    hosts = config.pipeline.hosts
    sections = {"actors": hosts.actors, "learners": hosts.learners, "env": config.env_settings}
    if config.environment is not None:
        sections["environment"] = config.environment
    return {f"{name}.{key}" for name, each in sections.items() for key in each.choosable if each.is_auto(key)}


BY_DEFAULT = {"actors.kind", "actors.replicas", "learners.kind"}


def test_hosts_are_chosen_unless_the_file_says_which():
    assert open_keys(config_of()) == BY_DEFAULT
    auto = {"actors": {"kind": "auto", "replicas": "auto"}, "learners": {"kind": "auto"}}
    assert open_keys(config_of(pipeline={"hosts": auto})) == BY_DEFAULT
    pinned = {"actors": {"kind": "process", "replicas": 1}, "learners": {"kind": "inline"}}
    assert open_keys(config_of(pipeline={"hosts": pinned})) == set()


def test_the_number_of_environments_is_chosen_only_if_the_file_says_auto():
    found = config_of(environment={**GYM, "num_envs": "auto"})
    assert open_keys(found) == BY_DEFAULT | {"environment.num_envs"}
    assert found.environment.num_envs == 1
    inherited = config_of(env_settings={"num_envs": "auto"})
    assert open_keys(inherited) == BY_DEFAULT | {"environment.num_envs", "env.num_envs"}
    unity = config_of(environment={"kind": "unity", "num_envs": "auto"}, env_settings={"env_path": "build"})
    assert open_keys(unity) == BY_DEFAULT | {"env.num_envs"}


def test_a_deterministic_run_chooses_no_hosts():
    found = config_of(pipeline={"deterministic": True})
    assert open_keys(found) == {"actors.replicas"}
    assert found.pipeline.hosts.actors.kind == "inline"


def test_plain_data_of_a_configuration_chooses_nothing_again():
    assert open_keys(RunConfig.from_plain(config_of().to_plain())) == set()


@pytest.mark.parametrize(
    "sections",
    [
        {"pipeline": {"hosts": {"learners": {"replicas": "auto"}}}},
        {"environment": {**GYM, "id": "auto", "max_episode_steps": "auto"}},
        {"pipeline": {"hosts": {"actors": {"replicas": "automatic"}}}},
    ],
)
def test_other_keys_and_words_are_mistakes(sections):
    with pytest.raises(ConfigError):
        config_of(**sections)
