"""What trainers take from checkpoints of ML-Agents is what ML-Agents plays and values with; what does not fit is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ml_agents_samples import SAMPLES, Sample

from headrace.pipeline.common.errors import RunError
from headrace.pipeline.policies.ml_agents import left_checkpoint, left_steps
from headrace.pipeline.policies.warm_start import resume_from_ml_agents, warm_start
from headrace.stages.errors import StageError
from headrace.stages.policy.design import design_of
from headrace.stages.policy.numpy_policy import NumpyPolicy
from headrace.stages.policy.sampling import LOG_SIGMA_LIMITS
from headrace.stages.trainer.factory import make_trainer
from headrace.stages.trainer.protocol import Trainer, TrainerContext

PPO = SAMPLES["ppo_hybrid"]
SAC = SAMPLES["sac_discrete"]


def trainer_for(sample: Sample, **network: Any) -> Trainer:
    return make_trainer(TrainerContext("Simple", sample.settings(**network), sample.spec))


def take(sample: Sample, path: Path | None = None, resume: bool = True, **network: Any) -> Trainer:
    """A trainer that has taken over the sample, or a changed copy of it."""
    trainer = trainer_for(sample, **network)
    start = resume_from_ml_agents if resume else warm_start
    start(trainer, path or sample.path, sample.spec, sample.settings(**network), None)
    return trainer


def changed(tmp_path: Path, sample: Sample, change: Any) -> Path:
    """A copy of the sample whose content the function has changed."""
    content = torch.load(sample.path, weights_only=True)
    change(content)
    torch.save(content, tmp_path / "checkpoint.pt")
    return tmp_path / "checkpoint.pt"


@pytest.fixture(params=list(SAMPLES))
def sample(request) -> Sample:
    return SAMPLES[request.param]


# What is taken over. --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resume", [True, False])
def test_the_policy_draws_actions_as_ml_agents_does(sample, resume):
    policy, played = NumpyPolicy(design_of(sample.spec, sample.settings())), sample.played()
    update = take(sample, resume=resume).policy()
    policy.load(update)
    heads = policy.heads((played["observations"].astype(np.float32),)).copy()
    count = sample.actions.continuous_size
    if count:
        squashed = sample.trainer_type == "sac"
        log_sigma = heads[:, count : 2 * count].clip(*LOG_SIGMA_LIMITS) if squashed else update.tensors()["log_sigma"]
        np.testing.assert_allclose(heads[:, :count], played["mean"], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(np.exp(log_sigma) + 0 * played["std"], played["std"], rtol=1e-5)
    if sample.actions.discrete_branches:
        weights = np.exp(heads[:, -sample.actions.mask_size :])
        branches = np.split(weights, np.cumsum(sample.actions.discrete_branches)[:-1], axis=1)
        shares = np.hstack([branch / branch.sum(axis=1, keepdims=True) for branch in branches])
        np.testing.assert_allclose(shares, played["probs"], rtol=1e-5)


@pytest.mark.parametrize("name", ["ppo_hybrid", "ppo_shared_critic"])
def test_ppos_critic_values_states_as_ml_agents_does(name):
    sample = SAMPLES[name]
    state, played = take(sample, resume=False).warm_state(), sample.played()
    weights = state["weights"]
    x = seen(played, state)
    for layer in range(2):
        x = swish(x @ weights[f"body.{layer}.weight"][-1] + weights[f"body.{layer}.bias"][-1])
    np.testing.assert_allclose(x @ weights["value.weight"] + weights["value.bias"], played["values"], rtol=1e-4)


@pytest.mark.parametrize("name", ["sac_continuous", "sac_discrete"])
def test_sacs_critics_value_actions_and_states_as_ml_agents_does(name):
    sample = SAMPLES[name]
    state, played = take(sample, resume=False).warm_state(), sample.played()
    networks, x = state["networks"], seen(played, state)
    count = len(x)
    for q in ("q1", "q2"):
        values = valued(np.hstack([x, played["actions"]]), networks["critics"], f"{q}.")
        np.testing.assert_allclose(values, played[q].reshape(count, -1), rtol=1e-4, atol=1e-6)
    if sample.actions.continuous_size:  # our SAC has no V then, and its targets are those of both Qs
        targets = valued(np.hstack([x, played["actions"]]), networks["target"], "q2.")
        np.testing.assert_allclose(targets, played["q2"].reshape(count, -1), rtol=1e-4, atol=1e-6)
    else:
        np.testing.assert_allclose(valued(x, networks["critics"], "value."), played["values"], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(valued(x, networks["target"]), played["target"], rtol=1e-4, atol=1e-6)


def test_the_count_of_steps_and_the_normaliser_resume(sample):
    state, theirs = take(sample).state_dict(), torch.load(sample.path, weights_only=True)["Policy"]
    assert state["step"] == sample.step
    if not sample.normalize:
        assert state["normalizer"] is None
        return
    at = "network_body.observation_encoder.processors.0.normalizer."
    assert state["normalizer"]["steps"] == int(theirs[f"{at}normalization_steps"])
    np.testing.assert_array_equal(state["normalizer"]["mean"], theirs[f"{at}running_mean"])
    np.testing.assert_array_equal(state["normalizer"]["squares"], theirs[f"{at}running_variance"])


def test_the_adam_state_of_a_checkpoint_is_mapped_to_the_matching_parameters():
    state = take(PPO).state_dict()["optimizer"]
    theirs = torch.load(PPO.path, weights_only=True)["Optimizer:value_optimizer"]["state"]
    # Numbers 0 to 5 are constants of the policy, which nobody learns; log σ precedes the means; the critic comes last.
    assert state["steps"] == int(theirs[6]["step"]) > 0
    for ours, name in (("first_moment", "exp_avg"), ("second_moment", "exp_avg_sq")):
        moments = state[ours]
        np.testing.assert_array_equal(moments["body.0.weight"][0], theirs[6][name].T)
        np.testing.assert_array_equal(moments["log_sigma"], theirs[10][name][0])
        np.testing.assert_array_equal(moments["action.weight"][:, :2], theirs[11][name].T)
        np.testing.assert_array_equal(moments["action.bias"][5:], theirs[16][name])
        np.testing.assert_array_equal(moments["body.1.weight"][1], theirs[19][name].T)
        np.testing.assert_array_equal(moments["value.weight"], theirs[21][name].T)


def test_all_adams_of_sac_resume():
    state, content = take(SAC).state_dict()["update"]["optimizers"], torch.load(SAC.path, weights_only=True)
    value = content["Optimizer:value_optimizer"]["state"]
    entropy = content["Optimizer:entropy_optimizer"]["state"]
    moments = state["critics"]["first_moment"]
    np.testing.assert_array_equal(moments["q2.body.layers.2.weight"], value[8]["exp_avg"])
    np.testing.assert_array_equal(moments["value.head.weight"], value[16]["exp_avg"])
    np.testing.assert_array_equal(state["coefficients"]["second_moment"]["logs"], entropy[0]["exp_avg_sq"])
    assert all(each["steps"] == int(value[0]["step"]) > 0 for each in state.values())


def test_a_checkpoint_from_before_the_first_update_has_no_moments(tmp_path):
    path = changed(tmp_path, PPO, lambda content: content["Optimizer:value_optimizer"]["state"].clear())
    optimizer = take(PPO, path).state_dict()["optimizer"]
    assert optimizer["steps"] == 0
    assert not any(moment.any() for moment in optimizer["first_moment"].values())


def test_a_checkpoint_of_an_older_version_has_another_name_for_hidden_layers(tmp_path):
    def as_before(content):
        for module in ("Policy", "Optimizer:critic"):
            content[module] = {
                name.replace("_body_endoder", "linear_encoder"): value for name, value in content[module].items()
            }

    ours, theirs = take(PPO).policy(), take(PPO, changed(tmp_path, PPO, as_before)).policy()
    np.testing.assert_array_equal(ours.weights, theirs.weights)


def test_a_poca_checkpoint_can_start_a_run_but_not_resume_it(tmp_path):
    def as_poca(content):
        content["Optimizer:adam"] = content.pop("Optimizer:value_optimizer")

    path = changed(tmp_path, PPO, as_poca)
    untouched = trainer_for(PPO).warm_state()["weights"]["value.weight"]
    trainer = take(PPO, path, resume=False)
    np.testing.assert_allclose(trainer.policy().weights, take(PPO).policy().weights, rtol=1e-6)
    np.testing.assert_array_equal(trainer.warm_state()["weights"]["value.weight"], untouched)
    with pytest.raises(
        StageError, match=r"can't be resumed from: it was written by ML-Agents' poca, but the trainer is ppo"
    ):
        take(PPO, path)


def test_networks_of_reward_signals_that_are_not_taken_over_are_named(tmp_path, caplog):
    path = changed(tmp_path, PPO, lambda content: content.update({"Module:GAIL": {"layer.weight": torch.zeros(2)}}))
    take(PPO, path)
    assert f"not loaded from {path}: the networks of its GAIL" in caplog.text


# What does not fit. ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "told"),
    [
        ({"hidden_units": 32}, "2 hidden layers of 16 units, .*; the behaviour now has .* 2 hidden layers of 32 units"),
        ({"normalize": False}, r"trained with 1 number \(normalised\), .* now has 1 number \(not normalised\)"),
        ({"memory": {}}, "holds an MLP .* different layers"),
    ],
)
@pytest.mark.parametrize("resume", [True, False])
def test_another_network_is_named(network, told, resume):
    with pytest.raises(StageError, match=rf"checkpoint\.pt can't be (resumed from|used as a starting point): .*{told}"):
        take(PPO, resume=resume, **network)


def test_other_actions_are_named():
    other = SAMPLES["ppo_shared_critic"]
    with pytest.raises(
        StageError, match=r"trained with .* branches of 3, 2 choices; the behaviour now has .* 2 contin"
    ):
        take(PPO, other.path, normalize=False)


def test_other_reward_signals_are_named(tmp_path):
    def with_gail(content):
        for kind in ("weight", "bias"):
            value = content["Optimizer:critic"][f"value_heads.value_heads.extrinsic.{kind}"]
            content["Optimizer:critic"][f"value_heads.value_heads.gail.{kind}"] = value

    with pytest.raises(StageError, match="with reward_signals extrinsic, gail; the behaviour now has extrinsic"):
        take(PPO, changed(tmp_path, PPO, with_gail))


def test_a_shared_critic_is_named():
    alone = Sample("ppo_shared_critic", "ppo", SAMPLES["ppo_shared_critic"].actions, 0, normalize=False)
    with pytest.raises(StageError, match=r"it was trained with hyperparameters\.shared_critic: true"):
        take(alone)


def test_another_trainer_is_named():
    sac = Sample("ppo_hybrid", "sac", PPO.actions, 0)
    with pytest.raises(StageError, match="it was written by ML-Agents' ppo, but the trainer is sac"):
        take(sac)
    with pytest.raises(StageError, match=r"its policy \(ppo\) draws continuous actions from a plain Gaussian"):
        take(sac, resume=False)


@pytest.mark.parametrize(
    ("parameter", "what"),
    [
        ("network_body.lstm.lstm.weight_ih_l0", "a memory"),
        ("network_body.observation_encoder.processors.0.conv_layers.0.weight", "images"),
        ("something.else", "other layers"),
    ],
)
def test_a_network_that_is_not_an_mlp_is_refused_with_the_parameter(tmp_path, parameter, what):
    path = changed(tmp_path, PPO, lambda content: content["Policy"].update({parameter: torch.zeros(2)}))
    with pytest.raises(
        StageError, match=f"is not a plain MLP over vector observations, because it has {what} \\({parameter}\\)"
    ):
        take(PPO, path)


@pytest.mark.parametrize(
    ("module", "key", "told"),
    [
        ("Optimizer:critic", "network_body._body_endoder.seq_layers.2.bias", "can't be resumed from: it is incomplete"),
        ("Optimizer:value_optimizer", "param_groups", "is not an ML-Agents checkpoint of ppo, sac or poca"),
        ("Policy", "action_model._continuous_distribution.mu.bias", "it was trained with .* branches of 3, 2"),
    ],
)
def test_a_file_that_lacks_something_is_refused_in_words(tmp_path, module, key, told):
    path = changed(tmp_path, PPO, lambda content: content[module].pop(key))
    with pytest.raises(StageError, match=told):
        take(PPO, path)


# Which file. ----------------------------------------------------------------------------------------------------------


def test_the_checkpoint_that_ml_agents_resumes_from_is_taken(tmp_path):
    folder = tmp_path / "Simple"
    folder.mkdir()
    assert left_checkpoint(tmp_path, "Simple") is None
    for name in ("Simple-700.pt", "Simple-1248.pt", "checkpoint.pt"):
        (folder / name).write_bytes(PPO.path.read_bytes())
        assert left_checkpoint(tmp_path, "Simple") == folder / name
    assert left_steps(tmp_path) == {"Simple": 1248}
    assert left_steps(tmp_path, ["Simple"]) == {}
    torch.save({"network_settings": {}}, folder / "checkpoint.pt")  # one of ours
    assert left_checkpoint(tmp_path, "Simple") == folder / "Simple-1248.pt"


def test_a_checkpoint_that_can_not_be_resumed_from_is_named_before_anything_starts(tmp_path):
    (tmp_path / "Simple").mkdir()
    torch.save({"Policy": {}, "global_step": {}}, tmp_path / "Simple" / "checkpoint.pt")
    with pytest.raises(RunError, match=r"Simple/checkpoint\.pt is not an ML-Agents checkpoint of ppo, sac or poca"):
        left_steps(tmp_path)


def seen(played, state):
    """The observations as networks take them in."""
    normalizer, observed = state.get("normalizer"), played["observations"]
    if normalizer is None:
        return observed
    deviation = np.sqrt(normalizer["squares"] / normalizer["steps"])
    return ((observed - normalizer["mean"]) / deviation).clip(-5, 5)


def valued(x, network, prefix=""):
    """The output of a network of SAC's."""
    for layer in (0, 2):
        at = f"{prefix}body.layers.{layer}"
        x = swish(x @ network[f"{at}.weight"].T + network[f"{at}.bias"])
    return x @ network[f"{prefix}head.weight"].T + network[f"{prefix}head.bias"]


def swish(x):
    return x / (1 + np.exp(-x))
