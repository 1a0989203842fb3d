"""What is learned in Unity: the stand-in's tasks are solved, by four programs at once.

How well an episode was played is the stand-in's own measure, which it writes down itself: 1 is perfect, and playing by
chance comes to about 0 (in `duel`, whose measure is the share of steps in the right direction, to a half).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from run_configs import INLINE, changed
from runs import run_here
from unity_runs import BUILD, free_port, reports

PPO: dict[str, Any] = {
    "trainer_type": "ppo",
    "hyperparameters": {
        "batch_size": 64,
        "buffer_size": 256,
        "learning_rate": 5e-3,
        "learning_rate_schedule": "constant",
    },
    "network_settings": {"hidden_units": 32, "num_layers": 1},
    "max_steps": 6000,
}
SAC: dict[str, Any] = {
    "trainer_type": "sac",
    "hyperparameters": {
        "batch_size": 32,
        "buffer_size": 5000,
        "buffer_init_steps": 200,
        "learning_rate": 5e-3,
        "tau": 0.01,
        "init_entcoef": 0.01,
        "steps_per_update": 4,
    },
    "network_settings": {"hidden_units": 16, "num_layers": 1},
    "max_steps": 6000,
}
LAST = 20
"""Episodes that each program is judged by."""


def play(folder, behavior, arguments, settings, parameters=None, num_envs=4):
    """Run the command to its end; the finished episodes' measures by behaviour id, program by program."""
    settings = {**settings, "summary_freq": 1000}
    plain = {
        "env_settings": {
            "env_path": str(BUILD),
            "env_args": [*map(str, arguments), "--report", str(folder / "reports")],
            "num_envs": num_envs,
            "base_port": free_port(num_envs),
            "timeout_wait": 60,
            "seed": 5,
        },
        "environment_parameters": parameters or {},
        "behaviors": {behavior: settings},
    }
    run_here(changed(plain, INLINE), folder, "run")
    found = reports(folder / "reports")
    assert len(found) == num_envs
    assert {report["returncode"] for report in found} == {0}, found
    return [report["measures"] for report in found]


def last(measures, behavior_id):
    """The mean of the last episodes of all programs."""
    return float(np.mean([each for program in measures for each in program[behavior_id][-LAST:]]))


DISCRETE = ("--branches", 2)
CONTINUOUS = ("--continuous", 1)


@pytest.mark.slow
@pytest.mark.parametrize("actions", [CONTINUOUS, DISCRETE], ids=["continuous", "discrete"])
@pytest.mark.parametrize("settings", [PPO, SAC], ids=["ppo", "sac"])
def test_a_simple_task_is_learned(tmp_path, settings, actions):
    measures = play(tmp_path, "Simple", ("--agents", 4, *actions), settings)
    assert last(measures, "Simple?team=0") > 0.9


@pytest.mark.slow
def test_two_teams_learn_from_each_other_by_self_play(tmp_path):
    ghosts = {"save_steps": 1000, "team_change": 2000, "swap_steps": 500, "window": 5}
    settings = {**PPO, "max_steps": 12000, "self_play": ghosts}
    # By smaller steps the race is so long that two who go astray at first may never reach its end, nor learn any more.
    measures = play(tmp_path, "Duel", ("--scene", "duel", "--agents", 4), settings, {"step_size": 0.5})
    for team in (0, 1):
        assert last(measures, f"Duel?team={team}") > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(("trainer", "groups"), [("ppo", ()), ("poca", ("--groups",))])
def test_agents_that_come_and_go_learn_to_work(tmp_path, trainer, groups):
    settings = {**PPO, "trainer_type": trainer, "max_steps": 10000}
    if trainer == "poca":
        # A third of what a group is paid is each member's doing, at once: what it is paid for long afterwards is but
        # noise, and once in twenty runs a faster learner that looks far ahead is led astray by it for good.
        settings["hyperparameters"] = {**PPO["hyperparameters"], "learning_rate": 2e-3, "buffer_size": 512}
        settings["reward_signals"] = {"extrinsic": {"gamma": 0.9, "strength": 1.0}}
        settings["max_steps"] = 14000
    arguments = ("--scene", "crowd", "--agents", 9, "--branches", 2, "--decision-period", 5, *groups)
    measures = play(tmp_path, "Crowd", arguments, settings)
    assert last(measures, "Crowd?team=0") > 0.9
