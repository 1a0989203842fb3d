"""An entry of rl-baselines3-zoo's files becomes a run of the same algorithm, or says which key has no place."""

from __future__ import annotations

import pytest

from headrace.config import ConfigError, load_config
from headrace.config.legacy.rl_zoo.conversion import read_expression
from headrace.config.load import convert
from headrace.config.network_settings import StateNoiseSettings
from headrace.config.yaml_reader import read_text

PPO = """\
default:
  n_timesteps: !!float 1e6
  policy: MlpPolicy

atari:
  env_wrapper:
    - stable_baselines3.common.atari_wrappers.AtariWrapper
  frame_stack: 4
  policy: CnnPolicy
  n_envs: 8
  n_steps: 128
  n_timesteps: !!float 1e7
  learning_rate: lin_2.5e-4
  batch_size: 256

Walker-v4: &walker
  n_envs: 8
  n_timesteps: !!float 1e5
  policy: 'MlpPolicy'
  n_steps: 32
  batch_size: 128
  gae_lambda: 0.8
  gamma: 0.98
  n_epochs: 20
  ent_coef: 0.0
  learning_rate: lin_0.001
  clip_range: 0.1
  policy_kwargs: "dict(activation_fn=nn.ReLU,
                       net_arch=dict(pi=[256, 128], vf=[256, 128]))"

Swimmer-v4:
  <<: *walker
  n_envs: 1
  normalize: "{'norm_obs': True, 'norm_reward': True}"
  vf_coef: 0.2
  clip_range_vf: 0.2
  rollout_buffer_class: Own
  rollout_buffer_kwargs: {}
  batch_size: 256
"""
SAC = """\
Lander-v3:
  n_timesteps: !!float 5e5
  policy: 'MlpPolicy'
  batch_size: 256
  learning_rate: lin_7.3e-4
  buffer_size: 1000000
  ent_coef: 'auto_0.5'
  gamma: 0.99
  tau: 0.01
  train_freq: 1
  gradient_steps: 1
  learning_starts: 10000
  policy_kwargs: "dict(net_arch=[400, 300])"

Cheetah-v4:
  n_timesteps: 20000
  n_envs: 2
  train_freq: 8
  gradient_steps: 4
  ent_coef: 0.1
  normalize: "{'norm_obs': True, 'norm_reward': False}"
  fancy: 2
"""


@pytest.fixture
def converted(tmp_path):
    """Convert an entry, and load what came of it."""

    def run(text, env_id, name="ppo.yml", **asked):
        (tmp_path / name).write_text(text, encoding="utf-8")
        made = convert(tmp_path / name, env_id=env_id, **asked)
        (tmp_path / "ours.yaml").write_text(made.text, encoding="utf-8")
        config = load_config(tmp_path / "ours.yaml")
        assert not config.warnings
        return made, config

    return run


@pytest.fixture
def refused(tmp_path):
    """Convert an entry that must be refused; the message without the folder."""

    def run(text, env_id, name="ppo.yml", **asked):
        (tmp_path / name).write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError) as caught:
            convert(tmp_path / name, env_id=env_id, **asked)
        return str(caught.value).replace(str(tmp_path / name), name)

    return run


def entry(**keys):
    return "Own-v0:\n  n_timesteps: 9000\n" + "".join(f"  {key}: {value}\n" for key, value in keys.items())


def test_ppo_learns_as_the_entry_says(converted):
    made, config = converted(PPO, "Walker-v4")
    settings = config.behaviors["Walker"]
    hyper = settings.hyperparameters
    assert made.left_out == ()
    assert (config.environment.kind, config.environment.id, config.environment.num_envs) == (
        "gymnasium",
        "Walker-v4",
        8,
    )
    assert (settings.trainer_type, settings.max_steps, settings.time_horizon) == ("ppo", 100_000, 32)
    assert (hyper.batch_size, hyper.buffer_size, hyper.num_epoch) == (128, 256, 20)
    assert (hyper.learning_rate, hyper.learning_rate_schedule) == (0.001, "linear")
    assert (hyper.epsilon, hyper.epsilon_schedule) == (0.1, "constant")
    assert (hyper.beta, hyper.beta_schedule, hyper.lambd) == (0, "constant", 0.8)
    assert (hyper.max_grad_norm, hyper.adam_epsilon) == (0.5, 1e-5)
    assert settings.signals["extrinsic"].gamma == 0.98
    network = settings.network_settings
    assert (network.hidden_units, network.activation, network.normalize) == ((256, 128), "relu", False)
    assert config.pipeline.max_policy_lag == 0


def test_sac_learns_as_the_entry_says(converted):
    made, config = converted(SAC, "Lander-v3", "sac.yml")
    settings = config.behaviors["Lander"]
    hyper = settings.hyperparameters
    assert made.left_out == ()
    assert (settings.trainer_type, settings.max_steps) == ("sac", 500_000)
    assert (hyper.learning_rate, hyper.learning_rate_schedule) == (7.3e-4, "linear")
    assert (hyper.batch_size, hyper.buffer_size, hyper.tau, hyper.steps_per_update) == (256, 1_000_000, 0.01, 1)
    assert (hyper.buffer_init_steps, hyper.random_steps) == (10_000, 10_000)
    assert (hyper.entropy_coefficient, hyper.init_entcoef) == ("auto", 0.5)
    assert (settings.network_settings.hidden_units, settings.network_settings.activation) == ((400, 300), "relu")


def test_steps_of_all_environments_count_for_updates_and_the_zoos_defaults_apply(converted):
    made, config = converted(SAC, "Cheetah-v4", "sac.yml")
    hyper = config.behaviors["Cheetah"].hyperparameters
    assert (hyper.train_freq, hyper.gradient_steps, hyper.buffer_init_steps, hyper.batch_size) == (16, 4, 100, 256)
    assert (hyper.entropy_coefficient, hyper.init_entcoef) == ("fixed", 0.1)
    assert config.behaviors["Cheetah"].network_settings.normalize
    assert made.left_out == ("fancy: 2: it is an unknown key",)


def test_actor_and_critic_can_have_different_layers_and_initial_weights_match_stable_baselines(converted):
    network = converted(PPO, "Walker-v4")[1].behaviors["Walker"].network_settings
    assert (network.initial_weights, network.critic_hidden_units) == ("orthogonal", None)
    kwargs = '"dict(net_arch=dict(pi=[64], vf=[32, 16]), ortho_init=False, log_std_init=-2, activation_fn=nn.GELU)"'
    made, config = converted(entry(policy_kwargs=kwargs), "Own-v0")
    network = config.behaviors["Own"].network_settings
    assert (made.left_out, network.hidden_units, network.critic_hidden_units) == ((), (64,), (32, 16))
    assert (network.initial_weights, network.activation) == ("torch", "gelu")


def test_continuous_actions_are_in_the_environments_own_numbers(converted):
    made, config = converted(entry(policy_kwargs='"dict(log_std_init=-2)"'), "Own-v0")
    log_std = config.behaviors["Own"].network_settings.initial_log_std
    assert (log_std, config.environment.action_bounds, made.left_out) == (-2, "clip", ())
    assert converted(entry(), "Own-v0", "sac.yml")[1].environment.action_bounds == "scale"


SDE = {"use_sde": True, "policy_kwargs": '"dict(log_std_init=-2, use_expln=True, full_std=False)"'}


@pytest.mark.parametrize(("freq", "steps", "ours"), [(4, 32, 4), (-1, 32, 32), (64, 32, 32), (None, 2048, 2048)])
def test_noise_of_gsde_is_drawn_as_often_as_there(converted, freq, steps, ours):
    text = entry(n_steps=steps, **SDE, **({} if freq is None else {"sde_sample_freq": freq}))
    made, config = converted(text, "Own-v0", "ppo.yml")
    network = config.behaviors["Own"].network_settings
    assert made.left_out == ()
    assert network.gsde == StateNoiseSettings(sample_freq=ours, use_expln=True, full_std=False)
    assert network.initial_log_std == -2


@pytest.mark.parametrize(
    ("train_freq", "freq", "ours"), [(32, -1, 32), ('[1, "episode"]', 64, 64), ("[1, episode]", -1, -1)]
)
def test_gsde_of_sac_may_act_from_the_first_step_on(converted, train_freq, freq, ours):
    steps = -1 if isinstance(train_freq, str) else train_freq
    keys = {"train_freq": train_freq, "gradient_steps": steps, "sde_sample_freq": freq, "learning_starts": 500}
    for at_warmup in (True, False):
        text = entry(use_sde=True, use_sde_at_warmup=at_warmup, **keys)
        made, config = converted(text, "Own-v0", "sac.yml")
        own = config.behaviors["Own"]
        assert made.left_out == ()
        assert own.network_settings.gsde == StateNoiseSettings(sample_freq=ours)
        assert own.network_settings.initial_log_std == -3
        hyper = own.hyperparameters
        assert (hyper.buffer_init_steps, hyper.random_steps) == (500, 0 if at_warmup else 500)


def test_squashed_actions_of_ppo_are_not_clipped_as_well(converted):
    made, config = converted(entry(use_sde=True, policy_kwargs='"dict(squash_output=True)"'), "Own-v0", "ppo.yml")
    gsde = config.behaviors["Own"].network_settings.gsde
    assert made.left_out == ()
    assert (gsde.squash_output, gsde.clip_mean, config.environment.action_bounds) == (True, 0, "scale")


def test_updates_at_the_end_of_an_episode(converted):
    text = entry(train_freq='[1, "episode"]', gradient_steps=-1, tau=0.02, ent_coef="auto")
    made, config = converted(text, "Own-v0", "own.yml")
    hyper = config.behaviors["Own"].hyperparameters
    assert (made.left_out, hyper.update_at, hyper.steps_per_update) == ((), "episode_end", 1)
    made, config = converted(entry(train_freq='[2, "episode"]', gradient_steps=64), "Own-v0", "sac.yml")
    hyper = config.behaviors["Own"].hyperparameters
    assert (made.left_out, hyper.update_at, hyper.train_freq, hyper.gradient_steps) == ((), "episode_end", 2, 64)


@pytest.mark.parametrize(
    ("freq", "updates", "envs", "expected"), [(32, 32, 1, (32, 32)), (8, 4, 1, (None, None)), (1, 1, 16, (None, None))]
)
def test_rounds_longer_than_what_actors_send_at_a_time_are_kept(converted, freq, updates, envs, expected):
    text = entry(train_freq=freq, gradient_steps=updates, n_envs=envs)
    config = converted(text, "Own-v0", "sac.yml")[1]
    hyper = config.behaviors["Own"].hyperparameters
    assert (hyper.train_freq, hyper.gradient_steps) == expected
    assert (config.pipeline.max_policy_lag == 0) == (expected != (None, None))


def test_sac_has_their_target_entropy_and_scaled_rewards(converted):
    text = entry(target_entropy=-0.5, target_update_interval=4, normalize="true")
    hyper = converted(text, "Own-v0", "sac.yml")[1].behaviors["Own"].hyperparameters
    assert (hyper.target_entropy, hyper.target_update_interval, hyper.reward_normalization) == (-0.5, 4, True)
    hyper = converted(entry(target_entropy="auto"), "Own-v0", "sac.yml")[1].behaviors["Own"].hyperparameters
    assert (hyper.target_entropy, hyper.reward_normalization) == (None, False)


@pytest.mark.parametrize(
    ("kwargs", "expected", "left_out"),
    [
        ({}, ("future", 4), []),
        (
            {
                "replay_buffer_kwargs": """"dict(online_sampling=True, goal_selection_strategy='final', n_sampled_goal=2)\""""
            },
            ("final", 2),
            [],
        ),
        (
            {"replay_buffer_kwargs": "{copy_info_dict: true}"},
            ("future", 4),
            ["replay_buffer_kwargs.copy_info_dict: true: `compute_reward` receives empty infos"],
        ),
    ],
)
def test_sac_relabels_goals_as_the_entry_says(converted, kwargs, expected, left_out):
    made, config = converted(entry(replay_buffer_class="HerReplayBuffer", **kwargs), "Own-v0", "sac.yml")
    settings = config.behaviors["Own"]
    hindsight = settings.hyperparameters.hindsight
    assert ((hindsight.goals, hindsight.per_transition), [*made.left_out]) == (expected, left_out)
    assert settings.network_settings.goal_conditioning_type == "none"


def test_unknown_replay_buffer_classes_and_arguments_without_a_class_are_left_out(converted):
    made, config = converted(
        entry(replay_buffer_class="mine.Buffer", replay_buffer_kwargs="{a: 1}"), "Own-v0", "sac.yml"
    )
    assert config.behaviors["Own"].hyperparameters.hindsight is None
    assert [each.partition(":")[0] for each in made.left_out] == ["replay_buffer_class", "replay_buffer_kwargs"]


def test_each_key_without_a_place_is_named_with_its_line_and_in_the_file(converted):
    made, config = converted(PPO, "Swimmer-v4")
    named = ["clip_range_vf", "rollout_buffer_class", "rollout_buffer_kwargs"]
    assert [each.split(":")[0] for each in made.left_out] == named
    assert all(f"#   {each}" in made.text for each in made.left_out)
    assert [warning.rsplit("ppo.yml:", 1)[1].split(":")[0] for warning in made.warnings] == ["36", "37", "38"]
    assert "#   clip_obs: 10" in made.text, "Headrace does not match this default"
    assert config.behaviors["Swimmer"].network_settings.normalize
    assert config.behaviors["Swimmer"].hyperparameters.reward_normalization
    assert config.behaviors["Swimmer"].hyperparameters.value_coefficient == 0.2


def test_a_key_without_a_place_is_not_named_if_its_value_is_headraces(converted):
    text = entry(normalize="{norm_obs: true, norm_reward: false, clip_obs: 5.0}")
    made, _ = converted(text, "Own-v0", "ppo.yml")
    assert not made.left_out
    assert "clip_obs" not in made.text
    made, _ = converted(text.replace("5.0", "10.0"), "Own-v0", "ppo.yml")
    assert made.left_out == ("normalize.clip_obs: 10: Headrace clips normalised observations to ±5",)


def test_a_minibatch_has_at_most_a_rollout(converted):
    made, config = converted(PPO, "Swimmer-v4")
    assert config.behaviors["Swimmer"].hyperparameters.batch_size == 32
    assert "batch_size: 32  # batch_size: 256; a rollout of n_steps × n_envs has 32" in made.text


def test_each_line_says_what_it_was(converted):
    made, _ = converted(PPO, "Walker-v4")
    lines = [line.strip() for line in made.text.splitlines()]
    assert "buffer_size: 256  # n_steps: 32 × n_envs: 8" in lines
    assert "learning_rate: 0.001  # learning_rate: lin_0.001" in lines
    assert "num_epoch: 20  # n_epochs" in lines
    assert "hidden_units: [256, 128]  # policy_kwargs.net_arch: {pi: [256, 128], vf: [256, 128]}" in lines
    assert "adam_epsilon: 1.0e-05  # their default for optimizer_kwargs" in lines


def test_a_game_of_atari_has_its_own_vectorised_implementation(converted):
    made, config = converted(PPO, "PongNoFrameskip-v4")
    assert (made.left_out, config.environment.id, config.environment.wrappers) == ((), "ALE/Pong-v5", ())
    assert config.environment.options == {"stack_num": 4, "episodic_life": True, "repeat_action_probability": 0}
    settings = config.behaviors["PongNoFrameskip"]
    assert (settings.network_settings.vis_encode_type, settings.hyperparameters.shared_critic) == ("nature_cnn", True)
    assert settings.network_settings.hidden_units == (512,)
    assert any("so the entry 'atari' is converted" in warning for warning in made.warnings)


def test_layers_behind_a_picture_are_the_actors_and_the_critics_own(converted):
    for keys, activation in ((", activation_fn=nn.GELU", "gelu"), ("", "tanh")):
        kwargs = f'"dict(net_arch=dict(pi=[256], vf=[128]){keys})"'
        made, config = converted(entry(policy="CnnPolicy", policy_kwargs=kwargs), "Own-v0", "ppo.yml")
        own = config.behaviors["Own"]
        network = own.network_settings
        assert (made.left_out, own.hyperparameters.shared_critic, network.activation) == ((), False, activation)
        assert (network.hidden_units, network.critic_hidden_units) == ((512, 256), (512, 128))
        assert "#   share_features_extractor: actor and critic" in made.text


def test_wrappers_and_frames(converted):
    wrappers = (
        "[gymnasium.wrappers.TimeLimit: {max_episode_steps: 500}, rl_zoo3.wrappers.FrameSkip: {skip: 2}, "
        "gymnasium.wrappers.GrayscaleObservation: {keep_dim: true}]"
    )
    made, config = converted(
        entry(env_wrapper=wrappers, frame_stack=2, policy="CnnPolicy", env_kwargs="{hard: 1}"), "a:Own-v0"
    )
    section = config.environment
    assert (made.left_out, section.id, section.max_episode_steps, section.options) == ((), "a:Own-v0", 500, {"hard": 1})
    assert [(each.use, each.with_) for each in section.wrappers] == [
        ("rl_zoo3.wrappers:FrameSkip", {"skip": 2}),
        ("gymnasium.wrappers:GrayscaleObservation", {}),
        ("gymnasium.wrappers:FrameStackObservation", {"stack_size": 2, "padding_type": "zero"}),
    ]
    _, config = converted(entry(frame_stack=3), "Own-v0")
    assert [each.use.partition(":")[2] for each in config.environment.wrappers] == [
        "FrameStackObservation",
        "FlattenObservation",
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vec_env_wrapper", "my.own.Wrapper"),
        ("clip_range_vf", "0.2"),
        ("policy_kwargs", '"dict(net_arch=dict(pi=[], vf=[32]))"'),
        ("policy_kwargs", '"dict(optimizer_class=RMSpropTFLike)"'),
        ("policy_kwargs", '"dict(activation_fn=nn.Mish)"'),
    ],
)
def test_keys_without_a_counterpart_are_left_out(converted, key, value):
    made, _ = converted(entry(**{key: value}), "Own-v0")
    assert [each.split(":")[0].split(".")[0] for each in made.left_out] == [key]


def test_rare_keys_of_an_entry_are_converted(converted):
    monitor = "\"dict(info_keywords=('height',))\""
    made, config = converted(entry(target_kl=0.02, seed=3, device="cpu", monitor_kwargs=monitor), "Own-v0")
    assert (made.left_out, config.behaviors["Own"].hyperparameters.target_kl) == ((), 0.02)
    assert (config.env_settings.seed, config.torch_settings.device) == (3, "cpu")
    assert config.environment.info_keys == ("height",)


def test_keys_without_effect_are_not_reported_as_left_out(converted):
    callback = "[rl_zoo3.callbacks.RawStatisticsCallback]"
    text = entry(verbose=1, sde_sample_freq=4, callback=callback, policy_kwargs='"dict(full_std=False)"')
    made, _ = converted(text, "Own-v0")
    assert made.left_out == ()


def test_another_version_of_the_environment_learns_by_the_entry_that_is_there(converted):
    made, config = converted(PPO, "Walker-v5")
    assert config.environment.id == "Walker-v5"
    assert config.behaviors["Walker"].hyperparameters.num_epoch == 20
    assert any("Walker-v5 has no entry, so the entry 'Walker-v4' is converted" in warning for warning in made.warnings)


def test_the_config_file_next_to_a_trained_agent_is_read_as_an_entry(converted):
    pairs = "- - - n_timesteps\n    - 20000.0\n  - - n_epochs\n    - 7\n"
    text = f"!!python/object/apply:collections.OrderedDict\n{pairs}"
    _, config = converted(text, "Own-v0", "config.yml")
    assert (config.behaviors["Own"].max_steps, config.behaviors["Own"].hyperparameters.num_epoch) == (20000, 7)
    _, config = converted("n_timesteps: 20000\nn_epochs: 7\n", "Own-v0", "config.yml")
    assert config.behaviors["Own"].hyperparameters.num_epoch == 7


def test_the_algorithm_is_recognised_by_name_or_keys_or_given_by_an_option(converted, refused):
    assert converted(entry(n_epochs=3), "Own-v0", "mine.yml")[1].behaviors["Own"].trainer_type == "ppo"
    assert converted(entry(gamma=0.9), "Own-v0", "mine.yml", algorithm="sac")[1].behaviors["Own"].trainer_type == "sac"
    assert "mine.yml: neither its name nor its keys identify the algorithm" in refused(entry(), "Own-v0", "mine.yml")
    assert "its name says ppo_lstm, which has no counterpart" in refused(entry(), "Own-v0", "ppo_lstm.yml")
    assert "--algo names dqn, which has no counterpart" in refused(entry(), "Own-v0", algorithm="dqn")


def test_a_missing_entry_is_refused_by_name(refused):
    assert "has no entry 'Oen-v1'; did you mean 'Own-v0'?" in refused(entry(), "Oen-v1")
    assert "'atari' is not an environment" in refused(PPO, "atari")
    assert "it has entries for Walker-v4, Swimmer-v4" in refused(PPO, None)
    assert "--id and --algo are only for rl-baselines3-zoo files" in refused("behaviors: {}\n", "Own-v0")


def test_a_file_of_the_zoo_is_not_a_configuration_until_it_is_converted(tmp_path):
    (tmp_path / "ppo.yml").write_text(PPO, encoding="utf-8")
    with pytest.raises(ConfigError, match="is an rl-baselines3-zoo file; .* --convert"):
        load_config(tmp_path / "ppo.yml")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"n_envs": "many"}, "ppo.yml:3: Own-v0.n_envs: many is not valid; expected a whole number above 0"),
        ({"learning_rate": "cos_1"}, "ppo.yml:3: behaviors.Own.hyperparameters.learning_rate: 'cos_1' is not"),
        ({"policy_kwargs": '"dict(a=open(1))"'}, "ppo.yml:3: Own-v0.policy_kwargs: contains a Call,"),
        ({"callback": "[[a.B]]"}, "ppo.yml:3: Own-v0.callback: [a.B] is not valid; expected package.module.Class"),
        ({"policy_kwargs": '"dict(a=0x' + "f" * 5000 + ')"'}, "ppo.yml:3: Own-v0.policy_kwargs: contains a Constant"),
    ],
)
def test_unreadable_values_are_refused_with_their_line(refused, keys, message):
    assert message in refused(entry(**keys), "Own-v0")


@pytest.mark.parametrize("text", ["__import__('os')", "dict(**x)", "[x for x in y]", "("])
def test_an_expression_that_is_not_a_literal_is_refused(text):
    with pytest.raises(ValueError, match="expected dict"):
        read_expression(text)


def test_the_values_in_comments_can_not_become_keys(converted):
    made, _ = converted(entry(tensorboard_log='"a\\nbehaviors: 1"', gama='"x\\n# y: 2\\u2028z: 3"'), "Own-v0")
    assert list(read_text(made.text, "ours").data) == ["environment", "behaviors", "pipeline", "checkpoint_settings"]
