"""What Stable-Baselines3 has too is the same number for number: run where that is installed.

PYTHONPATH=<folder of stable_baselines3> python -m pytest -m slow tests/stages/trainer/test_stable_baselines.py
"""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from opened_trainers import opened_trainer_of

from headrace.config import NetworkSettings, PPOHyperparameters
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.actor_critic import make_actor_critic, orthogonalised
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.trainer.on_policy.rollout import Rollout
from headrace.stages.trainer.on_policy.trainer import Coefficients
from headrace.stages.trainer.ppo import PPOUpdate
from headrace.stages.trainer.sac import coefficient_gradients
from headrace.stages.trainer.trajectories import Chains, RewardScale

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
sb3 = pytest.importorskip("stable_baselines3", reason="needs stable-baselines3")

SPEC = BehaviorSpec("Test", (ObservationSpec("vector", (3,)),), ActionSpec(2))


class Told(gymnasium.Env):
    """Rewards, and ends of episodes, that were drawn before."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, rewards, over):
        self.rewards, self.over, self.at = rewards, over, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        at, self.at = self.at % len(self.over), self.at + 1
        return np.zeros(3, np.float32), float(self.rewards[at]), bool(self.over[at]), False, {}


@pytest.mark.parametrize("seed", range(5))
def test_scaled_rewards_are_those_of_its_vec_normalize(seed):
    random, envs, steps, gamma = np.random.default_rng(seed), 3, 200, 0.97
    rewards = random.normal(random.normal() * 3, 10.0 ** random.uniform(-2, 2), (steps, envs)).astype(np.float32)
    over = random.random((steps, envs)) < 0.05
    made = [lambda at=at: Told(rewards[:, at], over[:, at]) for at in range(envs)]
    vectorised = sb3.common.vec_env.VecNormalize(sb3.common.vec_env.DummyVecEnv(made), norm_obs=False, gamma=gamma)
    vectorised.reset()
    scale, theirs, ours, episodes = RewardScale(gamma), [], [], np.zeros(envs, np.int64)
    for at in range(steps):
        theirs.append(vectorised.step(np.zeros((envs, 2), np.float32))[1])
        scale.see(rewards[at], np.ones(envs, np.int64), Chains.of(np.arange(envs), episodes, over[at]), at)
        ours.append(scale.apply(rewards[at]))
        episodes += over[at]
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    drawn = random.normal(0, 5, 64).astype(np.float32)  # of a replay buffer: by the statistics of now
    np.testing.assert_allclose(scale.apply(drawn), vectorised.normalize_reward(drawn), rtol=1e-6)


def test_orthogonal_weights_are_its_own_for_the_same_normal_numbers_and_have_its_gains():
    env = sb3.common.vec_env.DummyVecEnv([lambda: Told(np.zeros(1), np.zeros(1))])
    policy = sb3.PPO("MlpPolicy", env, policy_kwargs={"net_arch": {"pi": [16, 8], "vf": [16, 8]}}).policy
    settings = NetworkSettings(hidden_units=(16, 8), initial_weights="orthogonal", initial_log_std=0.0)
    design = PolicyDesign(SPEC, settings)
    ours = make_actor_critic(design, 1, False, np.random.default_rng(0)).state_dict()
    pairs = [
        (policy.mlp_extractor.policy_net[0], ours["body.0.weight"][0].T, 2**0.5),
        (policy.mlp_extractor.policy_net[2], ours["body.1.weight"][0].T, 2**0.5),
        (policy.mlp_extractor.value_net[0], ours["body.0.weight"][1].T, 2**0.5),
        (policy.mlp_extractor.value_net[2], ours["body.1.weight"][1].T, 2**0.5),
        (policy.action_net, ours["action.weight"].T, 0.01),
        (policy.value_net, ours["value.weight"].T, 1.0),
    ]
    for seed, (layer, weight, gain) in enumerate(pairs):
        theirs = layer.weight.detach().numpy()
        spectrum, their_spectrum = (np.linalg.svd(each, compute_uv=False) for each in (weight, theirs))
        np.testing.assert_allclose(spectrum, their_spectrum, rtol=1e-5)
        np.testing.assert_allclose(spectrum, np.full(len(spectrum), gain), rtol=1e-5)
        torch.manual_seed(seed)
        drawn = torch.empty(theirs.shape).normal_().numpy()
        torch.manual_seed(seed)
        policy.init_weights(layer, gain=gain)
        np.testing.assert_allclose(orthogonalised(drawn, gain), layer.weight.detach(), rtol=1e-4, atol=1e-6 * gain)


@pytest.mark.parametrize("batch_size", [32, 40])
@pytest.mark.parametrize(
    "noise",
    [None, {}, {"use_expln": True, "full_std": False}, {"squash_output": True}],
    ids=["own", "gSDE", "expln", "tanh"],
)
@pytest.mark.parametrize("standardised", [True, False])
def test_an_update_of_ppo_ends_with_its_weights(batch_size, standardised, noise):
    """With a minibatch of all rows, whose order then does not matter."""
    rows = 32
    env = sb3.common.vec_env.DummyVecEnv([lambda: Told(np.zeros(1), np.zeros(1))])
    keys = {"n_steps": rows, "batch_size": rows, "n_epochs": 4, "max_grad_norm": 0.1, "ent_coef": 0.5, "vf_coef": 0.7}
    layers = {"net_arch": {"pi": [16, 8], "vf": [16, 8]}, "log_std_init": -0.3, **(noise or {})}
    keys |= {"normalize_advantage": standardised, "use_sde": noise is not None}
    model = sb3.PPO("MlpPolicy", env, policy_kwargs=layers, device="cpu", **keys)
    model.set_logger(sb3.common.logger.Logger(None, []))
    policy, random = model.policy, np.random.default_rng(1)
    seen = random.normal(size=(rows, 3)).astype(np.float32)
    drawn = random.normal(size=(rows, 2)).astype(np.float32)
    drawn = np.tanh(drawn) if noise and noise.get("squash_output") else drawn
    advantages, returns = (random.normal(2, 3, rows).astype(np.float32) for _ in range(2))
    with torch.no_grad():
        values, log_probs, _ = policy.evaluate_actions(torch.from_numpy(seen), torch.from_numpy(drawn))
    old = log_probs.numpy() + random.normal(0, 0.2, rows).astype(np.float32)
    buffer = model.rollout_buffer
    for name, column in (("observations", seen), ("actions", drawn), ("values", values.numpy()[:, 0])):
        getattr(buffer, name)[:] = column.reshape(getattr(buffer, name).shape)
    for name, column in (("log_probs", old), ("advantages", advantages), ("returns", returns)):
        getattr(buffer, name)[:] = column.reshape(getattr(buffer, name).shape)
    buffer.full = True

    plain = {"hidden_units": (16, 8), "activation": "tanh", "initial_log_std": -0.3}
    settings = NetworkSettings.model_validate(plain | {"gsde": None if noise is None else {**noise, "clip_mean": 0}})
    design = PolicyDesign(SPEC, settings, bool(noise and noise.get("squash_output")))
    network = make_actor_critic(design, 1, False, np.random.default_rng(0))

    def theirs():
        if noise is not None:
            parts = {
                "actor.body.layers": policy.mlp_extractor.policy_net,
                "critic.layers": policy.mlp_extractor.value_net,
            }
            parts |= {"actor.action": policy.action_net, "value": policy.value_net}
            found = {f"{at}.{name}": each for at, part in parts.items() for name, each in part.named_parameters()}
            return found | {"actor.log_sigma": policy.log_std}
        towers = zip(policy.mlp_extractor.policy_net[::2], policy.mlp_extractor.value_net[::2], strict=True)
        found = {"log_sigma": policy.log_std}
        for at, pair in enumerate(towers):
            found[f"body.{at}.weight"] = torch.stack([layer.weight.T for layer in pair])
            found[f"body.{at}.bias"] = torch.stack([layer.bias[None] for layer in pair])
        for name, layer in (("action", policy.action_net), ("value", policy.value_net)):
            found |= {f"{name}.weight": layer.weight.T, f"{name}.bias": layer.bias}
        return found

    with torch.no_grad():
        for name, view in network.named_views(network.values).items():
            view.copy_(theirs()[name])
    model.train()
    hyperparameters = PPOHyperparameters(
        batch_size=batch_size,
        buffer_size=rows,
        num_epoch=4,
        max_grad_norm=0.1,
        shared_grad_norm=True,
        value_coefficient=0.7,
        adam_epsilon=1e-5,
    )
    update = PPOUpdate(network, SPEC, hyperparameters)
    weights, penalties = (np.ones((rows, 1), np.float32) if standardised else advantages[:, None]), np.zeros((rows, 0))
    targets = {"continuous": drawn, "penalties": penalties, "old_log_probs": old[:, None], "advantages": weights}
    targets["returns"] = returns[:, None]
    later = advantages if standardised else None
    rollout = Rollout(Inputs(torch.from_numpy(seen)), targets, np.zeros((rows, 0)), later)
    # Of two actions, with summed_entropy.
    update.run(rollout, Coefficients(3e-4, 2 * 0.5, epsilon=0.2), np.random.default_rng(0), 0)
    for name, view in network.named_views(network.values).items():
        torch.testing.assert_close(view.detach(), theirs()[name].detach(), rtol=1e-4, atol=2e-6, msg=name)


@pytest.mark.parametrize("target", ["auto", -0.75])
def test_the_entropy_coefficient_goes_down_its_gradient(target):
    model = sb3.SAC("MlpPolicy", Told(np.zeros(1), np.zeros(1)), target_entropy=target, device="cpu")
    keys = {} if target == "auto" else {"target_entropy": target}
    update = opened_trainer_of("sac", SPEC, hyperparameters=keys).update
    assert update.target_entropies.tolist() == [pytest.approx(float(model.target_entropy))]
    log_prob = torch.randn(32, 1)
    loss = -(model.log_ent_coef * (log_prob + model.target_entropy)).mean()  # as in its `train`
    loss.backward()
    found = coefficient_gradients(log_prob, update.target_entropies, None)
    torch.testing.assert_close(found, model.log_ent_coef.grad)
