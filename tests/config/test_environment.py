"""What the `environment` section says beyond which environment: wrappers, and what observations are taken for."""

from __future__ import annotations

import pytest
from placed import without_places

from headrace.config import (
    ActionRepeatSettings,
    ConfigError,
    KeyMapSettings,
    ObservationSettings,
    RoleSettings,
    RunConfig,
)

HEAD = "behaviors: {B: {}}\nenvironment: {kind: %s, id: A, %s}\n"


def environment_of(load, text, kind="gymnasium"):
    return load(HEAD % (kind, text)).environment


def test_wrappers_have_arguments_and_an_order(load):
    environment = environment_of(load, "wrappers: ['a:B', {use: 'c.d:E', with: {size: 3}}]")
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
def test_an_observation_is_described_in_one_word_or_in_full(load, text, meant):
    assert environment_of(load, f"observations: {{state.position: {text}}}").observations == {"state.position": meant}


def test_observations_of_a_tuple_go_by_number(load):
    assert list(environment_of(load, "observations: {0: set, 1.camera: image}").observations) == ["0", "1.camera"]


def test_shorthand_values_survive_serialization(load):
    config = load(HEAD % ("gymnasium", "observations: {a: goal, b: set}, wrappers: [{use: 'a:B', with: {size: 3}}]"))
    assert RunConfig.from_plain(config.to_plain()).environment == config.environment


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("observations: {a: gaol}", "environment.observations.a: 'gaol' is not valid; expected one of 'vector',"),
        ("observations: {a: {kind: sett}}", "environment.observations.a.kind: 'sett' is not valid; expected 'vector'"),
        ("observations: {a: {gaol: true}}", "environment.observations.a.gaol: unknown key; did you mean 'goal'?"),
        ("observations: {a: {max_entities: 0}}", "environment.observations.a.max_entities: 0 is out of range"),
        ("wrappers: [{with: {}}]", "environment.wrappers.0.use: is required but missing"),
        ("wrappers: [{use: a.b}]", "environment.wrappers.0.use: 'a.b' is not valid; expected module:Name"),
    ],
)  # fmt: skip
def test_mistakes_say_what_was_expected(load, text, message):
    with pytest.raises(ConfigError) as caught:
        environment_of(load, text)
    assert message in str(caught.value)


@pytest.mark.parametrize("method", ["set_lesson", "set_{lesson}", "set-{value}"])
def test_a_method_that_tells_a_parameter_has_a_place_for_its_value(load, method):
    godot = "behaviors: {B: {}}\nenvironment: {kind: godot, calls: {lesson: '%s'}}\n"
    with pytest.raises(
        ConfigError, match=r"environment\.calls: '.*' is not valid for 'lesson'; expected .* such as set_lesson_{value}"
    ):
        load(godot % method)
    assert load(godot % "set_lesson_{value}").environment.calls == {"lesson": "set_lesson_{value}"}


@pytest.mark.parametrize("key", ["wrappers: [{use: 'a:B'}]", "observations: {a: goal}"])
def test_wrappers_and_observations_are_refused_for_built_in_games(load, key):
    with pytest.raises(
        ConfigError, match=rf"environment.{key.partition(':')[0]}: can't be combined with kind 'builtin'"
    ):
        environment_of(load, key, kind="builtin")


TAG = "behaviors: {Predator: {}, Prey: {}}\nenvironment: {kind: pettingzoo, id: mpe2.simple_tag_v3, %s}\n"


def test_agents_of_pettingzoo_are_distinguished_by_patterns(load):
    roles = "behaviors: {'adversary_*': {behavior: Predator, team: 1, group: true}, 'agent_*': Prey}"
    environment = load(TAG % roles).environment

    assert environment.behaviors == {
        "adversary_*": RoleSettings(behavior="Predator", team=1, group=True),
        "agent_*": RoleSettings(behavior="Prey"),
    }
    assert list(environment.behaviors) == ["adversary_*", "agent_*"], "the first match counts"
    assert (environment.api, environment.outcome, environment.rotate_sides) == ("auto", "return", None)


@pytest.mark.parametrize(("text", "team"), [("2", 2), ("'2'", 2), ("each", "each"), ("null", None)])
def test_a_team_is_a_number_or_one_for_each(load, text, team):
    roles = f"behaviors: {{'*': {{behavior: Prey, team: {text}}}}}"
    assert load(TAG % roles).environment.behaviors["*"].team == team


def test_agents_of_one_behaviour_need_no_patterns(load):
    assert environment_of(load, "", kind="pettingzoo").behavior == "B"


def test_patterns_may_leave_the_behaviour_to_the_only_one(load):
    environment = environment_of(load, "behaviors: {'first_*': {team: 0}, 'second_*': {team: 1}}", kind="pettingzoo")
    assert (environment.behavior, environment.behaviors["second_*"].behavior) == ("B", None)


def test_the_keys_of_pettingzoo_survive_being_written_down(load):
    config = load(TAG % "behaviors: {'a*': Prey, '*': Predator}, api: aec, outcome: last_reward, rotate_sides: false")
    assert RunConfig.from_plain(config.to_plain()).environment == config.environment


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "environment: needs 'behaviors', the roles of its agents, because 2 behaviours are listed; for example {"),
        ("behaviors: {'*': {team: 0}}", "environment: needs 'behaviors', the roles of its agents, because 2"),
        ("behaviors: {'*': Pray}", "environment.behaviors.*.behavior: 'Pray' is not listed under behaviors; did you"),
        ("behaviors: {'*': {behavior: Prey, team: -1}}", "environment.behaviors.*.team: -1 is not valid; expected a"),
        ("behaviors: {'*': {behaviour: Prey}}", "environment.behaviors.*.behaviour: unknown key; did you mean"),
        ("behaviors: {'*': Prey}, api: both", "environment.api: 'both' is not valid; expected 'auto', 'parallel' or"),
        ("behaviors: {'*': Prey}, outcome: sum", "environment.outcome: 'sum' is not valid; expected 'return' or"),
        ("behaviors: {'*': Prey}, factory: 'a:b'", "environment.factory: can't be combined with 'id'; keep one of"),
    ],
)  # fmt: skip
def test_mistakes_about_pettingzoo_say_what_was_expected(load, text, message):
    with pytest.raises(ConfigError) as caught:
        load(TAG % text)
    assert message in str(caught.value)


def test_a_role_that_is_misspelt_is_named_if_defaults_would_take_it(load):
    roles = "behaviors: {'adversary_*': Predatr, 'agent_*': Prey}"
    config = load("default_settings: {trainer_type: ppo}\n" + TAG % roles)
    assert [text for text in without_places(config.warnings) if "environment.behaviors" in text] == [
        "environment.behaviors.adversary_*: 'Predatr' is not listed under behaviors, so it learns with "
        "default_settings; did you mean 'Predator'?"
    ]
    meant = load("default_settings: {trainer_type: ppo}\n" + TAG % "behaviors: {'*': Others}")
    assert not any("environment.behaviors" in text for text in meant.warnings)


def test_pettingzoo_needs_something_to_make(load):
    with pytest.raises(
        ConfigError,
        match="needs 'id' or 'factory', which names the environment to create; add a line such as 'id: "
        "mpe2.simple_tag_v3'",
    ):
        load("behaviors: {B: {}}\nenvironment: {kind: pettingzoo}\n")


@pytest.mark.parametrize("kind", ["gymnasium", "builtin"])
@pytest.mark.parametrize("key", ["api: aec", "behaviors: {'*': B}", "outcome: last_reward", "rotate_sides: true"])
def test_the_keys_of_pettingzoo_go_with_nothing_else(load, kind, key):
    name = key.partition(":")[0]
    with pytest.raises(
        ConfigError, match=rf"environment.{name}: can't be combined with kind '{kind}', only with kinds? 'pett"
    ):
        environment_of(load, key, kind=kind)


@pytest.mark.parametrize("kind", ["gymnasium", "pettingzoo", "builtin"])
@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("4", ActionRepeatSettings(steps=4)),
        ("'4'", ActionRepeatSettings(steps=4)),
        ("{max: 8}", ActionRepeatSettings(max=8)),
        ("{steps: 2, discount: 0.9}", ActionRepeatSettings(steps=2, discount=0.9)),
        ("null", None),
    ],
)
def test_actions_are_held_for_a_number_of_steps_or_up_to_one(load, kind, text, meant):
    name = "id: Volley" if kind == "builtin" else "id: A"
    config = load(f"behaviors: {{B: {{}}}}\nenvironment: {{kind: {kind}, {name}, action_repeat: {text}}}\n")
    assert config.environment.action_repeat == meant
    assert RunConfig.from_plain(config.to_plain()).environment == config.environment


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", "environment.action_repeat: 0 is out of range"),
        ("often", "environment.action_repeat: 'often' is not valid; expected a whole number"),
        ("{max: 1}", "environment.action_repeat.max: 1 is out of range"),
        ("{}", "environment.action_repeat: 'steps' and 'max' are both missing; expected 'steps' for a fixed repeat"),
        ("{steps: 2, max: 8}", "environment.action_repeat.max: 'steps' and 'max' are both"),
        ("{max: 8, learned: true}", "environment.action_repeat.learned: unknown key"),
    ],
)
def test_mistakes_about_action_repeat_say_what_was_expected(load, text, message):
    with pytest.raises(ConfigError) as error:
        environment_of(load, f"action_repeat: {text}")
    assert message in str(error.value)


def test_unity_repeats_actions_too_with_the_programs_that_env_settings_asks_for(load):
    text = (
        "behaviors: {B: {}}\nenvironment: {kind: unity, action_repeat: 2}\nenv_settings: {env_path: a, num_envs: 3}\n"
    )
    config = load(text)
    assert (config.environment.action_repeat, config.environment.num_envs) == (ActionRepeatSettings(steps=2), 3)
    again = RunConfig.from_plain(config.to_plain())
    assert (again.environment, again.env_settings) == (config.environment, config.env_settings)
    assert not config.warnings


def test_keys_are_set_by_behaviour_and_survive_a_round_trip(load):
    keys = "keys: {B: {rest: [1], press: {a: {branch: 0, value: 2}, d: {index: 1, value: -0.5}}}}"
    config = load(HEAD % ("gymnasium", keys))
    press = {"a": {"branch": 0, "value": 2}, "d": {"index": 1, "value": -0.5}}
    assert config.environment.keys == {"B": KeyMapSettings.model_validate({"rest": (1,), "press": press})}
    assert RunConfig.from_plain(config.to_plain()).environment == config.environment


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{value: 1}", "keys.B.press.a: 'branch' and 'index' are both missing; expected 'branch' for a discrete"),
        ("{branch: 0, index: 0, value: 1}", "environment.keys.B.press.a.index: 'branch' and 'index' are both"),
        ("{branch: 0, value: 1.5}", "environment.keys.B.press.a.value: 1.5 is not a valid choice for a"),
        ("{branch: 0}", "keys.B.press.a.value: is required but missing"),
        ("{brunch: 0, value: 1}", "keys.B.press.a.brunch: unknown key; did you mean 'branch'?"),
    ],
)
def test_a_key_that_means_nothing_is_a_mistake_with_its_place(load, text, message):
    with pytest.raises(ConfigError) as caught:
        load(HEAD % ("gymnasium", f"keys: {{B: {{press: {{a: {text}}}}}}}"))
    assert message in str(caught.value)


def test_keys_of_a_behaviour_that_is_not_listed_are_a_mistake_with_its_place(load):
    keys = "keys: {%s: {press: {a: {branch: 0, value: 1}}}}"
    assert load(HEAD % ("gymnasium", keys % "'B?team=1'")).environment.keys
    with pytest.raises(
        ConfigError, match=r"yaml:\d+: environment.keys.Bal: 'Bal' is not listed under behaviors; listed: B"
    ):
        load(HEAD % ("gymnasium", keys % "Bal"))


def test_environment_keys_are_refused_for_unity(load):
    with pytest.raises(ConfigError, match="environment.keys: can't be combined with kind 'unity'"):
        load("behaviors: {B: {}}\nenvironment: {kind: unity, keys: {B: {press: {a: {branch: 0, value: 1}}}}}\n")
