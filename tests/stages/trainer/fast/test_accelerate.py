"""The log states how a trainer's gradients are computed, and why."""

import pytest

from headrace.config import BehaviorSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.network.kernels import compiled
from headrace.stages.trainer.factory import make_trainer
from headrace.stages.trainer.protocol import TrainerContext


@pytest.mark.parametrize("lacking", [True, False])
def test_the_log_states_if_nothing_is_compiled(lacking, caplog, monkeypatch):
    caplog.set_level("INFO")
    if lacking:
        monkeypatch.setattr(compiled, "kernels", None)
    elif compiled.kernels is None:
        pytest.skip("nothing is compiled")
    spec = BehaviorSpec("Ball", (ObservationSpec("o", (3,)),), ActionSpec(2))
    make_trainer(TrainerContext("Ball", BehaviorSettings.model_validate({"trainer_type": "ppo"}), spec))
    assert lacking == ("needs a C compiler" in caplog.text)


@pytest.mark.parametrize(
    ("kind", "actions", "given", "told"),
    [
        ("ppo", ActionSpec(0, (3,)), {}, "gradients are computed manually"),
        ("impala", ActionSpec(0, (3,)), {}, "gradients are computed manually"),
        ("sac", ActionSpec(2), {}, "gradients are computed manually"),
        ("sac", ActionSpec(0, (3,)), {}, "autograd computes the gradients: some of its actions are discrete"),
        ("poca", ActionSpec(2), {}, "autograd computes the gradients: nothing is faster than POCAUpdate"),
        ("impala", ActionSpec(2), {"device": "meta"}, "autograd computes the gradients: it learns on meta"),
        ("ppo", ActionSpec(2), {"accelerated": False}, "autograd computes the gradients: torch_settings.acceleration"),
    ],
)
def test_the_log_states_what_was_chosen_and_why(kind, actions, given, told, caplog):
    caplog.set_level("INFO")
    spec = BehaviorSpec("Ball", (ObservationSpec("o", (3,)),), actions, grouped=kind == "poca")
    make_trainer(TrainerContext("Ball", BehaviorSettings.model_validate({"trainer_type": kind}), spec, **given))
    assert next(message for message in caplog.messages if "gradients" in message).startswith(f"Ball: {told}")


def test_the_log_names_the_key_that_gives_the_critic_other_layers(caplog):
    caplog.set_level("INFO")
    settings = {"trainer_type": "ppo", "network_settings": {"hidden_units": [8, 8], "critic_hidden_units": [16, 16]}}
    spec = BehaviorSpec("Ball", (ObservationSpec("o", (3,)),), ActionSpec(2))
    make_trainer(TrainerContext("Ball", BehaviorSettings.model_validate(settings), spec))
    (told,) = [message for message in caplog.messages if "gradients" in message]
    assert told.endswith("its critic has other layers than its actor (network_settings.critic_hidden_units).")
