"""The brains of a configuration: what names one, shares of games, and what is said about mistakes."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.config import ConfigError, RunConfig, load_config
from headrace.config.brains import drawn, kind_of


def config(brain, **block):
    return RunConfig.from_plain({"behaviors": {"Ball": {"brain": brain, **block}}})


def brains(brain, **block):
    return config(brain, **block).behaviors["Ball"].brain


@pytest.mark.parametrize(
    ("use", "kind"),
    [
        ("random", "random"),
        ("scripted", "scripted"),
        ("my_players:Chaser", "scripted"),
        ("models/Ball.onnx", "model"),
        ("Ball-500.pt", "model"),
        ("results/first", "model"),
        ("results/first/Ball@500000", "model"),
        ("learning", "learning"),
        ("player", "player"),
        ("sctipted", None),
    ],
)
def test_the_kind_of_a_brain_follows_from_its_reference(use, kind):
    assert kind_of(use) == kind


def test_learning_is_the_default_and_names_no_brain():
    assert RunConfig.from_plain({"behaviors": {"Ball": {}}}).behaviors["Ball"].brain == ()
    assert brains("learning") == brains({"use": "learning"}) == ()
    assert config("learning").behaviors["Ball"].learns


@pytest.mark.parametrize("given", ["random", {"use": "random"}, [{"use": "random"}]])
def test_a_word_a_map_and_a_list_of_one_mean_the_same(given):
    (brain,) = brains(given)
    assert (brain.use, brain.name, brain.weight, brain.with_) == ("random", "random", 1.0, {})
    assert not config(given).behaviors["Ball"].learns


def test_a_behaviour_learns_from_the_share_of_games_left_by_its_brains():
    assert config([{"use": "random", "weight": 0.3}, {"use": "a/b", "weight": 0.6}]).behaviors["Ball"].learns
    thirds = [{"use": "random", "weight": 0.333333, "name": name} for name in "abc"]
    assert not config(thirds).behaviors["Ball"].learns


def test_a_team_without_a_brain_learns():
    assert config({"use": "random", "teams": [1]}).behaviors["Ball"].learns
    both = [{"use": "random", "teams": [0]}, {"use": "scripted", "teams": [1]}]
    assert not config(both).behaviors["Ball"].learns


def test_the_configuration_survives_its_plain_form():
    given = [{"use": "m:C", "with": {"size": 3}, "weight": 0.25, "name": "small", "teams": [0, 2]}]
    again = RunConfig.from_plain(config(given).to_plain())
    assert again.behaviors["Ball"].brain == brains(given)


@pytest.mark.parametrize(
    ("shares", "at", "index"),
    [
        ((0.2, 0.1), 0.0, 0),
        ((0.2, 0.1), 0.2, 1),
        ((0.2, 0.1), 0.31, -1),
        ((0.5, 0.4999999), 0.99999999, 1),
        ((), 0, -1),
    ],
)
def test_a_draw_falls_into_one_share_or_into_the_rest(shares, at, index):
    assert drawn(shares, at) == index


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("brain: sctipted", "behaviors.Ball.brain: 'sctipted' is not a brain; expected 'random', 'scripted',"),
        ("brain: {use: randm}", "behaviors.Ball.brain.use: 'randm' is not a brain.*did you mean 'random'"),
        ("brain: [{use: learning, weight: 0.8}]", "behaviors.Ball.brain.0.use: 'learning' can't be in a list"),
        ("brain: {use: random, wieght: 0.5}", "brain.wieght: unknown key; did you mean 'weight'"),
        ("brain: {weight: 0.5}", "brain.use: is required but missing"),
        ("brain: {use: random, weight: 1.5}", "brain.weight: 1.5 is out of range"),
        ("brain: {use: random, with: {size: 3}}", "brain.with.size: 'random' accepts no arguments; leave it out"),
        ("brain: {use: a/b, with: {deterministic: 1}}", "brain.with.deterministic: 1 is not valid; expected true or"),
        ("brain: [{use: random}, {use: scripted}]", "the weights are shares of the games and add up to 2;"),
        ("brain: [{use: random, weight: 0.5}, {use: random, weight: 0.5}]", "brain.1.use: 'random' is the name of"),
        ("{brain: random, self_play: {}}", "self_play: can't be combined with 'brain'; list opponents that do not"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path, text, said):
    path = tmp_path / "run.yaml"
    path.write_text(f"behaviors:\n  Ball: {text}\n" if text[0] == "{" else f"behaviors:\n  Ball:\n    {text}\n")
    with pytest.raises(ConfigError, match=said) as raised:
        load_config(path)
    assert "run.yaml:" in str(raised.value)


def test_the_shares_of_a_team_are_added_up_for_themselves():
    config([{"use": "random", "teams": [0]}, {"use": "scripted", "teams": [1]}])
    with pytest.raises(ConfigError, match="the weights of team 1 are shares of the games and add up to 1.5"):
        config([{"use": "random", "teams": [0, 1]}, {"use": "scripted", "weight": 0.5, "teams": [1]}])


def test_brains_of_self_play_are_checked_alike():
    with pytest.raises(ConfigError, match=r"self_play.brains: the weights .* add up to 1.2"):
        entries = [{"use": "scripted", "weight": 0.6}, {"use": "random", "weight": 0.6}]
        RunConfig.from_plain({"behaviors": {"Ball": {"self_play": {"brains": entries}}}})


VOLLEY = {"environment": {"kind": "builtin", "id": "Volley"}}
PERSON = {"use": "player", "teams": [1]}


@pytest.mark.parametrize(
    ("plain", "said"),
    [
        ({"environment": {**VOLLEY["environment"], "num_envs": 8}}, "environment.num_envs: 8 instances, .* set it to"),
        ({"env_settings": {"num_envs": 8}}, "environment.num_envs: 8 instances, but with brain 'player' a person"),
        ({"pipeline": {"hosts": {"actors": {"replicas": 2}}}}, "actors.replicas: 2 actors, .* set it to 1"),
        ({"pipeline": {"deterministic": True}}, "pipeline.deterministic: can't be combined with brain 'player'"),
        ({"evaluation": {"every": 100}}, "evaluation: can't be combined with brain 'player'.* leave it out"),
    ],
)
def test_settings_that_conflict_with_a_human_player_are_refused_with_their_key(plain, said):
    alone = {**VOLLEY, "behaviors": {"Volley": {"brain": PERSON}}}
    assert RunConfig.from_plain(alone).behaviors["Volley"].brain[0].use == "player"
    with pytest.raises(ConfigError, match=said):
        RunConfig.from_plain({**alone, **plain})
    streams = {"replay": {"streams": ["a.stream"]}, **plain}
    RunConfig.from_plain({**alone, **streams} | {"pipeline": {}, "evaluation": None})  # nobody acts in it


def test_a_person_plays_all_games_and_only_as_the_brain_of_a_behaviour():
    with pytest.raises(ConfigError, match=r"Ball.brain: a person plays all games, .* 0\.5; leave weight out"):
        config({"use": "player", "weight": 0.5})
    with pytest.raises(ConfigError, match="'player' is a person, so it can only be the single 'brain' of a behaviour"):
        RunConfig.from_plain({"behaviors": {"Ball": {"self_play": {"brains": "player"}}}})
    with pytest.raises(ConfigError, match="evaluation.opponents: 'player' is a person.* name another opponent"):
        RunConfig.from_plain({"behaviors": {"Ball": {}}, "evaluation": {"every": 9, "opponents": "player"}})
    with pytest.raises(ConfigError, match="brain.with.keys: 'player' accepts no arguments"):
        config({"use": "player", "with": {"keys": "wasd"}})


def test_a_teacher_that_does_not_learn_has_to_broadcast():
    student = {"trainer_type": "bc", "hyperparameters": {"teacher": "Ball"}}
    plain: dict[str, Any] = {"behaviors": {"Ball": {"brain": "random"}, "Student": student}}
    with pytest.raises(ConfigError, match="'Ball' has a 'brain' that does not learn, whose steps are"):
        RunConfig.from_plain(plain)
    plain["behaviors"]["Ball"]["broadcast"] = True
    RunConfig.from_plain(plain)


@pytest.mark.parametrize(
    ("behaviors", "record", "warned"),
    [
        ({"Ball": {"brain": "random"}}, {}, True),
        ({"Ball": {"brain": "random"}}, {"edges": ["agent_processor"]}, True),
        ({"Ball": {"brain": "random", "broadcast": True}}, {"edges": ["trainer"]}, True),
        ({"Ball": {"brain": "random", "broadcast": True}}, {"edges": ["agent_processor"]}, False),
        ({"Ball": {"brain": "random"}, "Other": {}}, {"edges": ["agent_processor"]}, False),
        ({"Ball": {"brain": "random"}, "Other": {}}, {"behaviors": ["Ball"]}, True),
        ({"Ball": {"brain": {"use": "random", "weight": 0.5}}}, {"edges": ["agent_processor"]}, False),
    ],
)
def test_a_recording_without_the_steps_that_it_is_made_for_gives_a_warning(behaviors, record, warned):
    warnings = RunConfig.from_plain({"behaviors": behaviors, "record": record}).warnings
    expected = "record: the steps of Ball will not be recorded, because a brain controls it; to record them, set "
    assert [warning for warning in warnings if "not be recorded" in warning] == (
        [f"{expected}behaviors.Ball.broadcast: true and record.edges: [agent_processor]"] if warned else []
    )
