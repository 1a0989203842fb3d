"""Specifications of what a checkpoint fixes: a resumed run that has changed it is told what, where, and what to do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.config import RunConfig
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.main.fixed_settings import FIXED, check_fixed_spec, check_settings, fixed_by
from headrace.pipeline.run_folder.checkpoint import Checkpoint
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec

SPACES = {
    "observation": {"kind": "Box", "shape": [4], "dtype": "float32", "low": -1.0, "high": 1.0},
    "action": {"kind": "Box", "shape": [2], "dtype": "float32", "low": -1.0, "high": 1.0},
}
SPEC = BehaviorSpec("Ball", (ObservationSpec("vector", (4,)),), ActionSpec(2), spaces=SPACES)
SEEING = replace(SPEC, observations=(ObservationSpec("camera", (3, 40, 40), "uint8"),))
SIGNALS = {"extrinsic": {}, "curiosity": {}}


def config_with(**block):
    return RunConfig.from_plain(
        {
            "environment": {"kind": "gymnasium", "id": "CartPole-v1"},
            "behaviors": {"Ball": block},
            "checkpoint_settings": {"run_id": "first", "resume": True},
        }
    )


def checkpoint_of(spec=SPEC, steps=None, **block):
    fixed = json.loads(json.dumps({"Ball": fixed_by(config_with(**block).behaviors["Ball"], spec)}))
    return Checkpoint(3, Path("results/first/checkpoints/000003"), {}, steps or {"Ball": 50}, {FIXED: fixed})


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ({}, {"trainer_type": "sac"}, "trainer_type is sac, but the checkpoint was written with ppo"),
        ({"trainer_type": "poca"}, {}, "trainer_type is ppo, but the checkpoint was written with poca"),
        ({"reward_signals": SIGNALS}, {}, "reward_signals is extrinsic, but the checkpoint was written with"),
        (
            {"reward_signals": SIGNALS},
            {"reward_signals": {**SIGNALS, "curiosity": {"network_settings": {"hidden_units": 16}}}},
            "reward_signals.curiosity.network_settings.hidden_units is 16, 16, but the checkpoint was written with 128, 128",
        ),
        ({}, {"network_settings": {"hidden_units": 32, "num_layers": 1}}, "network_settings.hidden_units is 32, but"),
        ({"network_settings": {"memory": {"memory_size": 32}}}, {}, "network_settings.memory is none, but the"),
        ({"self_play": {}}, {}, "self_play is False, but the checkpoint was written with True"),
        ({"network_settings": {"gsde": {}}}, {}, "network_settings.gsde is none, but the checkpoint was written with"),
        (
            {"network_settings": {"gsde": {"sample_freq": 4}}},
            {"network_settings": {"gsde": {"use_expln": True}}},
            "network_settings.gsde.use_expln is True, but the checkpoint was written with False",
        ),
        ({}, {"network_settings": {"normalize": False}}, "network_settings.normalize is False"),
        ({}, {"network_settings": {"activation": "relu"}}, "network_settings.activation is relu"),
        ({}, {"network_settings": {"network": "nets:Mine"}}, "network_settings.network is nets:Mine"),
    ],
)
def test_each_setting_that_is_fixed_is_named_with_what_it_was(was, now, said):
    with pytest.raises(RunError) as refused:
        check_settings(config_with(**now), checkpoint_of(**was))
    assert f"behaviors.Ball.{said}" in str(refused.value)
    assert str(Path("results/first/configuration.yaml")) in str(refused.value)
    assert "--initialize-from=first" in str(refused.value)


def test_settings_that_may_change_do():
    may = {
        "trainer_type": "ppo",
        "hyperparameters": {"learning_rate": 1e-4, "buffer_size": 4096},
        "max_steps": 9000,
        "self_play": {},
        "network_settings": {"deterministic": True, "memory": {"memory_size": 32, "sequence_length": 8}},
        "reward_signals": {"extrinsic": {"gamma": 0.9}},
    }
    check_settings(config_with(**may), checkpoint_of(network_settings={"memory": {"memory_size": 32}}))


def test_a_side_of_self_play_must_be_listed_in_a_resumed_run():
    others = RunConfig.from_plain(
        {"behaviors": {"Wall": {"self_play": {}}}, "checkpoint_settings": {"run_id": "first"}}
    )
    with pytest.raises(RunError, match=r"behaviors\.Ball: took part in self-play, .*\n.*--initialize-from=first"):
        check_settings(others, checkpoint_of(self_play={}))
    check_settings(others, checkpoint_of())


def test_settings_without_meaning_for_a_spec_are_not_fixed():
    encoder = {"network_settings": {"vis_encode_type": "resnet"}}
    check_settings(config_with(**encoder), checkpoint_of())
    with pytest.raises(RunError, match="vis_encode_type is resnet, but the checkpoint was written with simple"):
        check_settings(config_with(**encoder), checkpoint_of(SEEING))
    check_settings(config_with(network_settings={"normalize": True}), checkpoint_of(SEEING))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (SEEING, r"different observations: vector float32\[4\]; the environment now has camera uint8\[3, 40, 40\]"),
        (replace(SPEC, observations=(ObservationSpec("vector", (5,)),)), r"float32\[5\]"),
        (replace(SPEC, observations=(ObservationSpec("vector", (4,), "uint8"),)), r"now has vector uint8\[4\]"),
        (replace(SPEC, actions=ActionSpec(0, (3,))), "different actions: 2 continuous actions; the environment now"),
        (replace(SPEC, actions=ActionSpec(2, unbounded=(0,))), "now has 2 continuous actions .1 without bounds"),
    ],
)
def test_another_spec_is_named_with_what_it_was(spec, said):
    with pytest.raises(RunError, match=rf"^Ball can't continue: it was trained with .*{said}.*--initialize-from=first"):
        check_fixed_spec(config_with(), checkpoint_of(), spec)


def test_another_range_of_a_space_is_warned_of(caplog):
    wider = {**SPACES, "action": {**SPACES["action"], "high": 2.0}}
    check_fixed_spec(config_with(), checkpoint_of(), replace(SPEC, spaces=wider))
    (record,) = caplog.records
    assert "action space was Box(-1" in record.getMessage()
    check_fixed_spec(config_with(), checkpoint_of(), SPEC)
    assert len(caplog.records) == 1


def test_a_behaviour_that_the_checkpoint_does_not_have_is_warned_of(caplog):
    check_fixed_spec(config_with(), checkpoint_of(), replace(SPEC, behavior_id="Wall"))
    assert "Wall starts from step 0" in caplog.text
    assert "does not contain this behaviour (it contains: Ball)" in caplog.text
