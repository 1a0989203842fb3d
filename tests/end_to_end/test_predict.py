"""`load_policy(…).predict` answers as `--inference` has played the same run: with a memory, from `.pt` and `.onnx`."""

from __future__ import annotations

import json

import numpy as np
from run_configs import INLINE, changed, remembering
from runs import run_here

from headrace import load_policy

NOTED = {"kind": "gymnasium", "factory": "noted_env:NotedEnv", "behavior": "CartPole", "num_envs": 3}
DETERMINISTIC = {"behaviors__CartPole__network_settings__deterministic": True}


def played(run_folder, plain, episodes):
    """What the environments noted while `--inference` played: (instance, an episode begins, shown, told), by step."""
    log = run_folder.parent / "noted"
    log.unlink(missing_ok=True)
    plain = changed(plain, {**DETERMINISTIC, "environment__options": {"log": str(log)}})
    run_here({**plain, "inference": {"episodes": episodes}}, run_folder.parent, run_folder.name, inference=True)
    return [json.loads(line) for line in log.read_text().splitlines()]


def assert_predicted(policy, steps):
    """Assert that `predict` gives each action, the memory of each instance passed along."""
    states = {}
    for number, begins, shown, told in steps:
        action, states[number] = policy.predict(shown, state=None if begins else states[number])
        np.testing.assert_allclose(action[0], told[0], rtol=0, atol=1e-6)
        assert action[1] == told[1]
    assert sum(begins for _, begins, _, _ in steps) > len(states), "some have begun anew"


def test_predict_returns_the_actions_that_inference_played(tmp_path):
    plain = changed(remembering(), {**INLINE, "environment": NOTED, "behaviors__CartPole__max_steps": 250})
    folder = run_here(plain, tmp_path, "run").folder

    assert_predicted(load_policy(folder), played(folder, plain, 10))
    for path in (*folder.glob("*/*.pt"), *folder.glob("*.pt")):
        path.unlink()
    assert load_policy(folder).file.suffix == ".onnx"
    assert_predicted(load_policy(folder), played(folder, plain, 10))
