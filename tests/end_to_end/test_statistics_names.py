"""What each trainer reports has ML-Agents' names: dashboards made for it find their curves.

The tables are those names, typed in; what Headrace reports beyond them stands apart.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from run_configs import INLINE, cartpole, cooperating, sac, taught, volley
from run_folders import streams, tags
from runs import run_here

ALL = {
    "Environment/Cumulative Reward",
    "Environment/Cumulative Reward_hist",
    "Environment/Episode Length",
    "Policy/Entropy",
    "Policy/Extrinsic Reward",
    "Policy/Learning Rate",
    "Losses/Policy Loss",
    "Losses/Value Loss",
    "Hyperparameters/text_summary",
}
ON_POLICY = ALL | {"Policy/Extrinsic Value Estimate", "Policy/Epsilon", "Policy/Beta"}
SAC = ALL | {
    "Policy/Extrinsic Value",
    "Policy/Continuous Entropy Coeff",
    "Policy/Discrete Entropy Coeff",
    "Losses/Q1 Loss",
    "Losses/Q2 Loss",
}
POCA = ON_POLICY | {
    "Environment/Group Cumulative Reward",
    "Environment/Group Cumulative Reward_hist",
    "Policy/Extrinsic Baseline Estimate",
    "Losses/Baseline Loss",
}
SIGNALS = {"Curiosity", "Gail", "Rnd"}
REWARDS = {f"Policy/{signal} Reward" for signal in SIGNALS}
LEARNED = {
    "Losses/Curiosity Forward Loss",
    "Losses/Curiosity Inverse Loss",
    "Losses/GAIL Loss",
    "Policy/GAIL Policy Estimate",
    "Policy/GAIL Expert Estimate",
    "Policy/GAIL Grad Mag Loss",
    "Policy/GAIL Beta",
    "Losses/GAIL KL Loss",
    "Losses/RND Loss",
    "Losses/Pretraining Loss",
}
OURS = {"Policy/Lag", "Pipeline/Update Duration", "Pipeline/Update Experiences", "Pipeline/Update Mean Return"}
OURS |= {"Pipeline/Steps per Second", "Pipeline/Updates", "Policy/Importance Weight", "Marks/checkpoint"}
OURS |= {f"Policy/{what}" for what in ("Approximate KL", "Clip Fraction", "Ratio Min", "Ratio Max", "Gradient Norm")}
OURS |= {"Policy/Actor Gradient Norm", "Policy/Critic Gradient Norm", "Policy/Gradient Steps"}
OURS |= {f"Policy/{signal} Explained Variance" for signal in ("Extrinsic", *SIGNALS)}
OURS_SAC = {
    f"Policy/{what} {kind}"
    for what in ("Q1", "Q2", "Value", "TD Error", "Log Probability")
    for kind in ("Min", "Mean", "Max")
}
SHORT = {"behaviors__CartPole__max_steps": 1500, "behaviors__CartPole__summary_freq": 500}


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory) -> str:
    """A recording on CartPole."""
    results = tmp_path_factory.mktemp("expert")
    run_here(cartpole(record__edges=["trainer"], behaviors__CartPole__max_steps=1000, **INLINE), results, "expert")
    return streams(results / "expert")[0]


def everything(demonstrations: str) -> dict:
    """All reward signals, and cloning."""
    network = {"network_settings": {"hidden_units": 8}}
    return {
        "behaviors__CartPole__reward_signals": {
            "extrinsic": {},
            "curiosity": network,
            "gail": {"demo_path": demonstrations, "use_vail": True, **network},
            "rnd": network,
        },
        "behaviors__CartPole__behavioral_cloning": {"demo_path": demonstrations, "samples_per_update": 100},
    }


def of_trainer(found: set[str]) -> set[str]:
    """Tags other than the diagnosis', and the histograms of actions, which have the names of an environment's heads."""
    return {tag for tag in found if not tag.startswith(("action/", "Data/", "Diagnosis/", "Marks/finding"))}


@pytest.fixture(scope="module")
def by_ppo(tmp_path_factory) -> Path:
    """The folder of a run of PPO on discrete actions."""
    return run_here(cartpole(**SHORT, **INLINE), tmp_path_factory.mktemp("ppo"), "run").folder


@pytest.fixture(scope="module")
def by_sac(tmp_path_factory) -> Path:
    """The folder of a run of SAC on continuous actions, without a reward signal beside the environment's."""
    short = {
        "environment__max_episode_steps": 20,
        "behaviors__Pendulum__max_steps": 300,
        "behaviors__Pendulum__summary_freq": 100,
    }
    plain = sac(behaviors__Pendulum__reward_signals={"extrinsic": {}}, **short, **INLINE)
    return run_here(plain, tmp_path_factory.mktemp("sac"), "run").folder


def test_ppo_reports_what_it_reports_in_ml_agents(by_ppo):
    assert of_trainer(tags(by_ppo, "CartPole")) - OURS == ON_POLICY


def test_each_head_of_the_actions_has_a_histogram(by_ppo, by_sac):
    assert tags(by_ppo, "CartPole") > {"action/branch_0", "action/branch_0_hist"}
    assert tags(by_sac, "Pendulum") > {"action/continuous_0", "action/continuous_0_hist"}


def test_poca_reports_what_it_reports_in_ml_agents(tmp_path):
    plain = cooperating(**INLINE, behaviors__Team__max_steps=600)
    run = run_here(plain, tmp_path, "run").folder
    assert of_trainer(tags(run, "Team")) - OURS == POCA


def test_sac_reports_what_it_reports_in_ml_agents(by_sac):
    assert of_trainer(tags(by_sac, "Pendulum")) - OURS - OURS_SAC == SAC


def test_reward_signals_and_cloning_with_ppo_report_the_same_statistics_as_ml_agents(demonstrations, tmp_path):
    run = run_here(cartpole(**SHORT, **INLINE, **everything(demonstrations)), tmp_path, "run").folder
    estimates = {f"Policy/{signal} Value Estimate" for signal in SIGNALS}
    assert of_trainer(tags(run, "CartPole")) - OURS == ON_POLICY | REWARDS | LEARNED | estimates


def test_reward_signals_and_cloning_with_sac_report_the_same_statistics_as_ml_agents(demonstrations, tmp_path):
    plain = cartpole(**INLINE, **everything(demonstrations))
    plain["behaviors"]["CartPole"] |= {"trainer_type": "sac", "max_steps": 300, "summary_freq": 100}
    plain["behaviors"]["CartPole"]["hyperparameters"] = {"batch_size": 16, "buffer_size": 400, "steps_per_update": 10}
    run = run_here(plain, tmp_path, "run").folder
    values = {f"Policy/{signal} Value" for signal in SIGNALS}
    assert of_trainer(tags(run, "CartPole")) - OURS - OURS_SAC == SAC | REWARDS | LEARNED | values


def test_self_play_reports_its_rating(tmp_path):
    short = {"behaviors__Volley__max_steps": 4000, "behaviors__Volley__summary_freq": 1000}
    run = run_here(volley(**short, **INLINE), tmp_path, "run").folder
    assert of_trainer(tags(run, "Volley")) - OURS - {"Self-play/Skill", "Volley/Match Seconds"} == ON_POLICY | {
        "Self-play/ELO"
    }


def test_lessons_are_reported_by_the_parameters_name(tmp_path):
    run = run_here(taught(**INLINE), tmp_path, "run").folder
    assert of_trainer(tags(run, "Guess")) - OURS == ON_POLICY | {"Environment/Lesson Number/worth"}
