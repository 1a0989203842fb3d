"""Which file a behaviour starts from, and whether what is in it fits."""

import numpy as np
import pytest

from headrace.config import BehaviorSettings, RunConfig
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.policies.export import export_policy
from headrace.pipeline.policies.warm_start import initial_policy, warm_start
from headrace.queues.messages import PolicyUpdate
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.design import design_of, policy_layout
from headrace.stages.trainer.factory import make_trainer
from headrace.stages.trainer.protocol import TrainerContext


def starting_from(results, **more):
    settings = {"results_dir": str(results), "initialize_from": "first"}
    return RunConfig.from_plain({"checkpoint_settings": settings, **more})


@pytest.fixture
def trained(tmp_path):
    """A run of two behaviours with a few exports each."""
    for name in ("Listed", "Unlisted"):
        (tmp_path / "first" / name).mkdir(parents=True)
        for step in (900, 1000):
            (tmp_path / "first" / name / f"{name}-{step}.pt").write_bytes(b"")
    return tmp_path


def test_a_behaviour_that_only_default_settings_describe_starts_from_the_other_run_too(trained):
    config = starting_from(trained, default_settings={"max_steps": 10}, behaviors={"Listed": {}})
    for name in ("Listed", "Unlisted"):
        assert initial_policy(config, name) == trained / "first" / name / f"{name}-1000.pt"


def test_a_behaviour_that_the_other_run_has_not_trained_is_named(trained):
    with pytest.raises(RunError, match=r"initialize_from: .*Other holds no trained policy \(Other-<step>\.pt\)"):
        initial_policy(starting_from(trained, default_settings={}), "Other")


def test_a_behaviour_with_a_slash_in_its_name_starts_from_the_folder_that_it_was_saved_in(tmp_path):
    folder = tmp_path / "first" / "Team%2FBall"
    folder.mkdir(parents=True)
    (folder / "Team%2FBall-50.pt").write_bytes(b"")
    config = starting_from(tmp_path, default_settings={})
    assert initial_policy(config, "Team/Ball") == folder / "Team%2FBall-50.pt"


def settings_of(trainer_type, **network):
    hyperparameters = {"demo_path": "unread"} if trainer_type == "bc" else {}
    return BehaviorSettings.model_validate(
        {
            "trainer_type": trainer_type,
            "hyperparameters": hyperparameters,
            "network_settings": {"hidden_units": 8, "num_layers": 1, **network},
        }
    )


def start_from(folder, maker, taker, actions, **network):
    """Start a trainer of one kind from an export of another kind; keyword arguments are of the former's network."""
    spec = BehaviorSpec("Ball", (ObservationSpec("court", (5,)),), actions)
    layout = policy_layout(design_of(spec, settings_of(maker)))
    weights = np.full(sum(int(np.prod(shape)) for _, shape in layout), 0.5, np.float32)
    path = export_policy(folder, PolicyUpdate("Ball", 1, weights, layout, 10), spec, settings_of(maker))
    trainer = make_trainer(TrainerContext("Ball", settings_of(taker, **network), spec))
    warm_start(trainer, path, spec, settings_of(taker, **network))
    return trainer.policy()


@pytest.mark.parametrize(("maker", "taker"), [("bc", "sac"), ("ppo", "sac"), ("sac", "ppo")])
def test_a_policy_that_draws_its_continuous_actions_otherwise_is_refused_in_words(tmp_path, maker, taker):
    with pytest.raises(
        StageError,
        match=rf"Ball-10\.pt can't be used as a starting point: its policy \({maker}\) draws .*, but that of {taker} from ",
    ):
        start_from(tmp_path, maker, taker, ActionSpec(2))


def test_any_trainer_takes_any_policy_with_discrete_actions_only(tmp_path):
    policy = start_from(tmp_path, "bc", "sac", ActionSpec(0, (3,)))
    assert (policy.weights == 0.5).all()


def test_a_policy_whose_weights_meant_something_else_is_refused_with_the_activation_to_set(tmp_path):
    with pytest.raises(StageError, match="activation is tanh, but the policy was trained with swish; set it to swish"):
        start_from(tmp_path, "ppo", "impala", ActionSpec(2), normalize=False)
    start_from(tmp_path, "ppo", "impala", ActionSpec(2), normalize=False, activation="swish")
