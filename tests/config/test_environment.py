"""What the `environment` section says beyond which environment: wrappers, and what observations are taken for."""

from __future__ import annotations

import pytest

from config import ConfigError, ObservationSettings, RunConfig

HEAD = "behaviors: {B: {}}\nenvironment: {kind: %s, id: A, %s}\n"


def environment_of(load, text, kind="gymnasium"):
    return load(HEAD % (kind, text)).environment


def test_there_are_no_wrappers_and_observations_are_what_they_look_like(load):
    environment = environment_of(load, "")
    assert (environment.wrappers, environment.observations) == ((), {})


def test_wrappers_have_arguments_and_an_order(load):
    environment = environment_of(load, "wrappers: [{use: 'a:B'}, {use: 'c.d:E', with: {size: 3}}]")
    assert [(wrapper.use, wrapper.with_) for wrapper in environment.wrappers] == [("a:B", {}), ("c.d:E", {"size": 3})]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("vector", ObservationSettings(kind="vector")),
        ("image", ObservationSettings(kind="image")),
        ("set", ObservationSettings(kind="set")),
        ("goal", ObservationSettings(goal=True)),
        ("{kind: set, goal: true, max_entities: 5}", ObservationSettings(kind="set", goal=True, max_entities=5)),
        ("{channels: first}", ObservationSettings(channels="first")),
    ],
)
def test_an_observation_is_said_in_a_word_or_in_full(load, text, meant):
    assert environment_of(load, f"observations: {{state.position: {text}}}").observations == {"state.position": meant}


def test_observations_of_a_tuple_go_by_number(load):
    assert list(environment_of(load, "observations: {0: set, 1.camera: image}").observations) == ["0", "1.camera"]


def test_what_was_said_in_a_word_survives_being_written_down(load):
    config = load(HEAD % ("gymnasium", "observations: {a: goal, b: set}, wrappers: [{use: 'a:B', with: {size: 3}}]"))
    assert RunConfig.from_plain(config.to_plain()).environment == config.environment


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("observations: {a: gaol}", "environment.observations.a: 'gaol' is not known; expected one of 'vector', 'image',"),
        ("observations: {a: {kind: sett}}", "environment.observations.a.kind: 'sett' is not known; expected 'vector'"),
        ("observations: {a: {gaol: true}}", "environment.observations.a.gaol: unknown key; did you mean 'goal'?"),
        ("observations: {a: {max_entities: 0}}", "environment.observations.a.max_entities: 0 is out of range"),
        ("observations: {a: 5}", "environment.observations.a: 5 does not fit; expected a map"),
        ("wrappers: [{with: {}}]", "environment.wrappers.0.use: is required but missing"),
        ("wrappers: [{use: a.b}]", "environment.wrappers.0.use: 'a.b' is not of the form module:Name"),
    ],
)  # fmt: skip
def test_mistakes_say_what_was_expected(load, text, message):
    with pytest.raises(ConfigError) as caught:
        environment_of(load, text)
    assert message in str(caught.value)


@pytest.mark.parametrize("key", ["wrappers: [{use: 'a:B'}]", "observations: {a: goal}"])
def test_neither_goes_with_a_built_in_game(load, key):
    with pytest.raises(ConfigError, match=rf"environment\.{key.partition(':')[0]}: does not go with kind 'builtin'"):
        environment_of(load, key, kind="builtin")
