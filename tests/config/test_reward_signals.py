"""Reward signals: ML-Agents' defaults, what is there and what is not, and what is refused."""

from __future__ import annotations

import pytest

from headrace.config import (
    BehavioralCloningSettings,
    CuriositySettings,
    GAILSettings,
    NetworkSettings,
    OwnSignalSettings,
    RNDSettings,
    RunConfig,
)

NETWORK = NetworkSettings().model_dump()
COMMON = {"gamma": 0.99, "strength": 1.0, "learning_rate": 3e-4, "encoding_size": None, "network_settings": NETWORK}


def test_the_signals_have_the_defaults_of_ml_agents():
    assert CuriositySettings().model_dump() == COMMON
    assert RNDSettings().model_dump() == {**COMMON, "learning_rate": 1e-4}
    gail = {"demo_path": "a", "use_actions": False, "use_vail": False}
    assert GAILSettings(demo_path="a").model_dump() == {**COMMON, **gail}


def test_behavioral_cloning_has_the_defaults_of_ml_agents():
    assert BehavioralCloningSettings(demo_path="a").model_dump() == {
        "demo_path": "a",
        "steps": 0,
        "strength": 1.0,
        "samples_per_update": 0,
        "num_epoch": None,
        "batch_size": None,
    }


def test_the_map_replaces_the_default_so_that_the_extrinsic_reward_must_be_listed_to_be_kept(load):
    config = load("behaviors: {B: {reward_signals: {rnd: {gamma: 0.9}, curiosity: {}}}}")
    assert {name: signal.gamma for name, signal in config.behaviors["B"].signals.items()} == {
        "curiosity": 0.99,
        "rnd": 0.9,
    }


def test_signals_come_in_the_same_order_however_the_file_has_them(load):
    config = load("behaviors: {B: {reward_signals: {rnd: {}, gail: {demo_path: a}, curiosity: {}, extrinsic: {}}}}")
    assert list(config.behaviors["B"].signals) == ["extrinsic", "curiosity", "gail", "rnd"]


@pytest.mark.parametrize("name", ["curiosity", "gail", "rnd"])
def test_encoding_size_is_taken_for_hidden_units_unless_the_network_is_given(load, name: str):
    body = "demo_path: a, encoding_size: 77" if name == "gail" else "encoding_size: 77"
    alone = load(f"behaviors: {{B: {{reward_signals: {{{name}: {{{body}}}}}}}}}")
    beside = load(f"behaviors: {{B: {{reward_signals: {{{name}: {{{body}, network_settings: {{num_layers: 1}}}}}}}}}}")
    for config, units in ((alone, 77), (beside, 128)):
        for each in (config, RunConfig.from_plain(config.to_plain())):  # as hosts get it
            assert each.behaviors["B"].learned_signals[name].network_settings.hidden_units == units


def test_signals_of_default_settings_are_merged_key_by_key(load):
    config = load(
        """
        default_settings: {reward_signals: {extrinsic: {gamma: 0.5}, gail: {demo_path: a, strength: 2}}}
        behaviors: {B: {reward_signals: {gail: {gamma: 0.6}, rnd: {}}}}
        """
    )
    signals = config.behaviors["B"].signals
    assert {name: (each.gamma, each.strength) for name, each in signals.items()} == {
        "extrinsic": (0.5, 1.0),
        "gail": (0.6, 2.0),
        "rnd": (0.99, 1.0),
    }


def test_null_drops_a_signal_of_default_settings(load):
    config = load(
        """
        default_settings: {reward_signals: {extrinsic: {}, gail: {demo_path: a}}}
        behaviors: {A: {reward_signals: {gail: null}}, B: {reward_signals: {extrinsic: null, rnd: {}}}}
        """
    )
    for each in (config, RunConfig.from_plain(config.to_plain())):
        assert list(each.behaviors["A"].signals) == ["extrinsic"]
        assert list(each.behaviors["B"].signals) == ["gail", "rnd"]
        assert list(each.behavior_settings("unlisted").signals) == ["extrinsic", "gail"]


@pytest.mark.parametrize(
    ("default", "own", "expected"),
    [
        ("{extrinsic: {}}", "{rnd: null}", ".rnd: an empty value (null) is not valid"),
        ("{extrinsic: {}}", "{extrinsic: null}", ": is empty"),
    ],
)
def test_null_for_a_signal_that_is_not_inherited_or_the_only_one_is_a_mistake(
    mistakes_of, default: str, own: str, expected: str
):
    text = f"default_settings: {{reward_signals: {default}}}\nbehaviors: {{B: {{reward_signals: {own}}}}}"
    (mistake,) = mistakes_of(text)
    assert mistake.startswith(f"config.yaml:2: behaviors.B.reward_signals{expected}")


MISTAKES = [
    ("{}", ": is empty; list at least one signal, such as 'extrinsic: {}', or leave the key out to use that default"),
    ("", ": an empty value (null) is not valid; expected a map of keys and values"),
    ("[extrinsic]", ": a list is not valid; expected a map"),
    ("{extrinsic: }", ".extrinsic: an empty value (null) is not valid; expected a map of keys and values ('{}' uses"),
    ("{extrinsc: {}}", ".extrinsc: unknown key; did you mean 'extrinsic'?"),
    ("{entropy: {}}", ".entropy: unknown key; expected one of curiosity, extrinsic, gail, rnd, or your own name with"),
    ("{own: {use: Mine}}", ".own.use: 'Mine' is not valid; expected module:Name"),
    ("{rnd: {use: my:Own}}", ".rnd.use: unknown key"),
    ("{strength: 1}", ".strength: unknown key here; it belongs under 'extrinsic'"),
    ("{extrinsic: {}, reward_signal_num_update: 4}", ".reward_signal_num_update: unknown key, from an older format"),
    ("{extrinsic: {strength: .nan}}", ".extrinsic.strength: nan is not valid; expected"),
    ("{extrinsic: {gama: 1}}", ".extrinsic.gama: unknown key; did you mean 'gamma'?"),
    ("{extrinsic: {learning_rate: 1}}", ".extrinsic.learning_rate: unknown key here; it belongs under 'behaviors.B.re"),
    ("{gail: {}}", ".gail.demo_path: is required but missing: Demonstrations"),
    ("{curiosity: {demo_path: a}}", ".curiosity.demo_path: unknown key here; it belongs under 'behaviors.B.reward_si"),
    ("{curiosity: {hidden_units: 9}}", ".curiosity.hidden_units: unknown key here; it belongs under"),
]


@pytest.mark.parametrize(("body", "expected"), MISTAKES, ids=[body for body, _ in MISTAKES])
def test_a_mistake_in_reward_signals_says_what_was_expected(mistakes_of, body: str, expected: str):
    (mistake,) = mistakes_of(f"behaviors: {{B: {{reward_signals: {body}}}}}")
    assert mistake.startswith(f"config.yaml:1: behaviors.B.reward_signals{expected}")


def test_all_mistakes_of_all_signals_are_reported_at_once(mistakes_of):
    text = """
        behaviors:
          B:
            reward_signals:
              extrinsic:
              curiosity: {gamma: 2}
              gail: {use_vial: true}
              novelty: {}
    """
    assert [line.split(": ")[1] for line in sorted(mistakes_of(text))] == [
        "behaviors.B.reward_signals.extrinsic",
        "behaviors.B.reward_signals.curiosity.gamma",
        "behaviors.B.reward_signals.gail.demo_path",
        "behaviors.B.reward_signals.gail.use_vial",
        "behaviors.B.reward_signals.novelty",
    ]


OWN = "{bonus: {use: my.module:Bonus, with: {scale: 2}, gamma: 0.5}, rnd: {}}"


def test_a_signal_of_ones_own_has_any_other_name_and_comes_last(load):
    config = load(f"behaviors: {{B: {{reward_signals: {OWN}}}}}")
    for each in (config, RunConfig.from_plain(config.to_plain())):
        signals = each.behaviors["B"].signals
        assert list(signals) == ["rnd", "bonus"]
        bonus = signals["bonus"]
        assert isinstance(bonus, OwnSignalSettings)
        assert (bonus.use, bonus.with_, bonus.gamma, bonus.strength) == ("my.module:Bonus", {"scale": 2}, 0.5, 1.0)
        assert each.behaviors["B"].reward_signals.class_of("bonus") == "my.module:Bonus"
