"""docs/predict.md: its code runs as it stands, and its messages are those that come."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from predicted import MEMORY, group_of, saved

from headrace import PredictError, load_policy
from headrace.stages.environments.gymnasium.group import GymnasiumGroup

PAGE = (Path(__file__).parents[3] / "docs" / "predict.md").read_text()
CODE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def run_folder(tmp_path, monkeypatch):
    """The folder of a run on CartPole, where the page has it."""
    group = GymnasiumGroup(SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")]), "CartPole", "CartPole-v1")
    group.reset(0)
    folder = tmp_path / "results" / "cartpole"
    saved(folder, group.behavior_specs["CartPole"], **MEMORY)
    monkeypatch.chdir(tmp_path)
    return folder


def test_its_code_loads_a_policy_and_plays_an_episode(run_folder):
    loading, playing, *_ = CODE
    known: dict[str, Any] = {"observation": np.zeros(4)}

    exec(loading + playing, known)

    assert known["action"] in (0, 1)
    assert known["ended"]


def test_its_code_plays_many_episodes_at_once_with_a_memory(run_folder):
    options = re.search(r"`vector_kwargs=(\{.*?\})`", PAGE)
    assert options
    envs = gymnasium.make_vec("CartPole-v1", 3, "sync", vector_kwargs=eval(options[1]))
    known: dict[str, Any] = {"policy": load_policy(run_folder), "envs": envs, "observations": envs.reset(seed=0)[0]}

    exec(CODE[2].replace("1000", "50"), known)

    assert known["state"].shape == (3, known["policy"].state_size)
    assert known["starts"].shape == (3,)


def test_its_messages_are_those_that_come(run_folder, tmp_path):
    of_tuple, of_gear = re.findall(r"^obs.*: .*$", PAGE, re.MULTILINE)
    with pytest.raises(PredictError, match=f"^{re.escape(of_tuple)}$"):
        load_policy(run_folder).predict((np.zeros(4), {}))
    group, _, _ = group_of(spaces.Dict(gear=spaces.Discrete(3, start=1)), spaces.Discrete(2), num_envs=1)
    policy = load_policy(saved(tmp_path, group.behavior_specs["Test"]))
    with pytest.raises(PredictError, match=f"^{re.escape(of_gear)}$"):
        policy.predict({"gear": 0})
