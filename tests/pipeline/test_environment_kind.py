"""A kind of environment that is not ours: one entry in the table, and runs, `--validate` and messages know it."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import yaml
from configuration_pages import reference
from pydantic import Field
from runs import run_here

from headrace.config import ConfigError, EnvironmentSettings, RunConfig
from headrace.config.environment_kinds import ENVIRONMENT_KINDS, EnvironmentKind
from headrace.config.errors import Finding
from headrace.config.fields import Int
from headrace.pipeline.cli import main
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.environments.protocol import AgentSteps, StepResult
from headrace.stages.errors import LoadError

SEEN = []


class LampSettings(EnvironmentSettings):
    """A section with a key of its own."""

    kind: Literal["lamps"]
    length: Int = Field(5, gt=0, description="Steps of an episode.")


class Lamps:
    """Agents that see a lamp, on or off, and are rewarded where their choice is the same; episodes are of a length."""

    def __init__(self, behavior, num_envs, length, seed):
        self.num_envs, self._behavior, self._length = num_envs, behavior, length
        spec = BehaviorSpec(behavior, (ObservationSpec("lamp", (1,)),), ActionSpec(discrete_branches=(2,)))
        self.behavior_specs = {behavior: spec}
        self._random = np.random.default_rng(seed)
        self._steps = self._episode = 0

    def reset(self, seed=None):
        self._steps = self._episode = 0
        return self._result(np.zeros(self.num_envs, np.float32), over=False)

    def step(self, actions):
        self._steps += 1
        rewards = (actions[self._behavior].discrete[:, 0] == self._lamps[:, 0]).astype(np.float32)
        return self._result(rewards, over=self._steps % self._length == 0)

    def close(self):
        pass

    def _result(self, rewards, over):
        self._lamps = self._random.integers(0, 2, (self.num_envs, 1)).astype(np.float32)
        agents, ended = np.arange(self.num_envs), self.num_envs if over else 0
        episodes = np.full(ended + self.num_envs, self._episode)
        if over:
            self._episode += 1
            episodes[ended:] += 1
            agents, rewards = np.tile(agents, 2), np.concatenate([rewards, np.zeros_like(rewards)])
        steps = AgentSteps(
            agent_ids=agents.astype(np.int64),
            env_ids=agents.astype(np.int32),
            episode_ids=episodes.astype(np.int64),
            observations=(np.concatenate([self._lamps, self._lamps]) if over else self._lamps,),
            rewards=rewards,
            ended=ended,
            terminated=np.ones(ended, np.bool_),
            truncated=np.zeros(ended, np.bool_),
        )
        return StepResult({self._behavior: steps})


def make_lamps(request):
    SEEN.append((request.seed, request.replica, request.run_folder.name))
    return Lamps(request.settings.behavior, request.settings.num_envs, request.settings.length, request.seed)


def check_lamps(config):
    if config.environment.num_envs > 99:
        yield Finding(("environment", "num_envs"), "are more lamps than we have", ())


def named_lamps(config):
    def find():
        if config.environment.id == "broken":
            raise LoadError("environment.id: no lamp is called 'broken'", key=("environment", "id"))

    yield find


def describe_lamps(config):
    return f"{config.environment.num_envs} lamps of length {config.environment.length}"


@pytest.fixture(autouse=True)
def lamps(monkeypatch):
    kind = EnvironmentKind(
        meaning="lamps",
        group=f"{__name__}:make_lamps",
        made_by=("id",),
        example="id: Lamp",
        keys=("behavior",),
        settings=f"{__name__}:LampSettings",
        check=f"{__name__}:check_lamps",
        references=f"{__name__}:named_lamps",
        description=f"{__name__}:describe_lamps",
    )
    monkeypatch.setitem(ENVIRONMENT_KINDS, "lamps", kind)
    SEEN.clear()


def plain(**section):
    behavior = {
        "trainer_type": "ppo",
        "max_steps": 3000,
        "time_horizon": 16,
        "summary_freq": 1000,
        "hyperparameters": {"buffer_size": 500, "batch_size": 100, "learning_rate": 0.01},
        "network_settings": {"hidden_units": 16, "num_layers": 1},
    }
    hosts = {"actors": {"kind": "inline"}, "learners": {"kind": "inline"}}
    return {
        "environment": {"kind": "lamps", "id": "Lamp", "num_envs": 8, "length": 4, **section},
        "env_settings": {"seed": 3},
        "behaviors": {"Lamp": behavior},
        "pipeline": {"hosts": hosts},
    }


@pytest.mark.lengthy
def test_a_run_trains_on_environments_of_the_new_kind(tmp_path):
    result = run_here(plain(), tmp_path, "lamps")

    lamp = result.behaviors["Lamp"]
    assert lamp.version >= 5
    assert lamp.recent_return > 3, "of 4 choices, 2 are right by chance"
    assert SEEN == [(3, 0, "lamps")]


def test_a_kinds_own_keys_survive_a_round_trip():
    config = RunConfig.from_plain(plain())

    assert RunConfig.from_plain(config.to_plain()).environment == config.environment
    assert isinstance(config.environment, LampSettings)
    assert (config.environment.length, config.environment.behavior) == (4, "Lamp")


def test_validate_describes_it_and_finds_what_it_names(tmp_path, capsys):
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(plain()))
    assert main([str(path), "--validate", "--no-env-check"]) == 0  # its process would not know this test's kind
    assert "environment: 8 lamps of length 4" in capsys.readouterr().out

    assert main([str(path), "--validate", "--set", "environment.id=broken"]) == 2
    assert "environment.id: no lamp is called 'broken'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"kind": "lamp"}, "environment.kind: 'lamp' is not valid; expected 'builtin', .* or 'lamps'; did you mean"),
        ({"id": None}, "environment: needs 'id', which names the environment to create; add a line such as 'id: Lamp'"),
        ({"length": 0}, "environment.length: 0 is out of range"),
        ({"lenght": 3}, "environment.lenght: unknown key; did you mean 'length'"),
        ({"kind": "gymnasium", "length": 3}, "environment.length: unknown key"),
        ({"options": {"a": 1}}, "environment.options: can't be combined with kind 'lamps', only with kinds 'builtin',"),
        ({"num_envs": 100}, "environment.num_envs: are more lamps than we have"),
    ],
)  # fmt: skip
def test_mistakes_are_reported_by_its_entry(section, message):
    with pytest.raises(ConfigError, match=message):
        RunConfig.from_plain(plain(**section))


def test_the_reference_of_the_yaml_lists_its_keys():
    page = reference()["configuration-environment.md"]
    assert "`environment (kind: lamps)`" in page
    assert "| `length` | whole number | `5` | > 0 | Steps of an episode. |" in page
