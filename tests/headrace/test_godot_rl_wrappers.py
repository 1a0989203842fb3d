"""The wrappers of the package `godot-rl` itself, over our `GodotEnv`; where that is not installed, nothing is tried."""

from __future__ import annotations

import importlib
import socket
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from godot_runs import build_in

from headrace.godot import GodotEnv

pytest.importorskip("godot_rl", reason="needs godot-rl: pip install --no-deps godot-rl")
pytestmark = pytest.mark.slow
AGENTS = 4


class TerminatingEnv(GodotEnv):
    """For wrappers that read only `terminated`."""

    ENDS_ARE_TERMINATED = True


@pytest.fixture
def wrapper(monkeypatch):
    """Imports a wrapper as if our class were the official one."""

    def load(module: str, *needs: str, env_class: type[GodotEnv] = GodotEnv):
        for need in needs:
            pytest.importorskip(need)
        official = importlib.import_module("godot_rl.core.godot_env")
        monkeypatch.setattr(official, "GodotEnv", env_class)
        for name in [name for name in sys.modules if name.startswith("godot_rl.wrappers")]:
            monkeypatch.delitem(sys.modules, name)
        return importlib.import_module(f"godot_rl.wrappers.{module}")

    return load


@pytest.fixture
def options(tmp_path):
    """How a wrapper starts the stand-in."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return {"env_path": str(build_in(tmp_path)), "port": probe.getsockname()[1]}


@pytest.mark.parametrize("single", [False, True], ids=["every key", "one key"])
@pytest.mark.parametrize("game", ["switch", "reach"])
def test_stable_baselines_learns(wrapper, options, game, single):
    sb3 = pytest.importorskip("stable_baselines3")
    module, name = ("sbg_single_obs", "SBGSingleObsEnv") if single else ("stable_baselines", "StableBaselinesGodotEnv")
    made = getattr(wrapper(f"{module}_wrapper", env_class=TerminatingEnv), name)
    env = sb3.common.vec_env.VecMonitor(made(**options, game=game, agents=AGENTS))
    policy = "MlpPolicy" if single else "MultiInputPolicy"
    settings = {"n_steps": 64, "batch_size": 64, "n_epochs": 6, "learning_rate": 2e-3, "gamma": 0.5}
    sb3.common.utils.set_random_seed(1)  # the wrapper takes none
    model = sb3.PPO(policy, env, device="cpu", **settings)
    model.learn(6_000)
    returns = [episode["r"] for episode in model.ep_info_buffer]
    assert np.mean(returns) > {"switch": 8, "reach": 6.5}[game]
    env.close()


def test_cleanrl_s_wrapper_steps(wrapper, options):
    env = wrapper("clean_rl_wrapper").CleanRLGodotEnv(**options, game="reach", agents=AGENTS)
    assert (env.num_envs, env.single_action_space.shape) == (AGENTS, (1,))
    seen, _ = env.reset(1)
    assert seen.shape == (AGENTS, *env.single_observation_space.shape)
    ends = []
    for _ in range(10):
        seen, rewards, terminated, truncated, infos = env.step(seen[:, :1])
        assert np.allclose(rewards, 1.0, atol=1e-5), "each was told what it has seen"
        assert len(infos) == AGENTS
        ends.append(np.logical_or(terminated, truncated))
    assert np.sum(ends, axis=0).tolist() == [1] * AGENTS
    env.close()


def test_pettingzoo_s_wrapper_steps_and_its_agents_end(wrapper, options):
    module = wrapper("petting_zoo_wrapper", "pettingzoo")
    config = {"env_path": options["env_path"], "action_repeat": None, "speedup": None, "game": "switch", "agents": 3}
    env = module.GDRLPettingZooEnv(port=options["port"], show_window=False, config=config)
    observations, _ = env.reset()
    assert set(observations) == set(env.possible_agents) == {0, 1, 2}
    assert env.agent_policy_names == ["Agent"] * 3
    ended = set()
    for _ in range(10):
        actions = {agent: env.action_space(agent).sample() for agent in env.agents if agent not in ended}
        _, rewards, terminated, _, _ = env.step(actions)
        assert set(rewards) == set(actions)
        ended |= {agent for agent, done in terminated.items() if done}
    assert ended == {0, 1, 2}
    env.close()


@pytest.mark.parametrize("batched", [True, False])
def test_sample_factory_s_wrappers_step(wrapper, options, batched):
    module = wrapper("sample_factory_wrapper", "sample_factory")
    kind = module.SampleFactoryEnvWrapperBatched if batched else module.SampleFactoryEnvWrapperNonBatched
    env = kind(**options, game="mixed", agents=AGENTS)
    observed, _ = env.reset(seed=1)
    assert env.num_agents == AGENTS
    assert env.unwrapped is env
    if batched:
        assert observed["obs"].shape == (AGENTS, 2)
        actions = [np.zeros((AGENTS, 1), np.float32), np.ones(AGENTS, np.int64)]
    else:
        assert observed[0]["obs"].shape == (2,)
        actions = [env.action_space.sample() for _ in range(AGENTS)]
    for _ in range(10):
        _, rewards, terminated, truncated, _ = env.step(actions)
        assert rewards.shape == terminated.shape == truncated.shape == (AGENTS,)
    env.close()


def test_ray_s_wrapper_steps(wrapper, options):
    module = wrapper("ray_wrapper", "ray.rllib.env.vector_env")
    config = {"env_path": options["env_path"], "show_window": False, "action_repeat": None, "speedup": None}
    env = module.RayVectorGodotEnv(port=options["port"], config={**config, "game": "mixed", "agents": AGENTS})
    observations, _ = env.vector_reset()
    assert (env.num_envs, len(observations)) == (AGENTS, AGENTS)
    for _ in range(10):
        _, rewards, *_ = env.vector_step([env.action_space.sample() for _ in range(AGENTS)])
        assert len(rewards) == AGENTS
    assert isinstance(env.get_unwrapped()[0], GodotEnv)
    assert env.reset_at(2)[0] == env.obs[2]
    env.get_unwrapped()[0].close()


def test_the_official_command_s_training_runs(wrapper, options, tmp_path):
    module = wrapper("stable_baselines_wrapper", "stable_baselines3", "tensorboard", env_class=TerminatingEnv)
    arguments = SimpleNamespace(
        env_path=options["env_path"], viz=False, speedup=1, experiment_dir=str(tmp_path / "logs"), experiment_name="one"
    )
    module.stable_baselines_training(arguments, [], n_steps=300, port=options["port"], game="switch", agents=AGENTS)
    assert [*(tmp_path / "logs").rglob("events*")]
