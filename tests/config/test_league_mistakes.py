"""Mistakes in a file with a league: each is refused with the line that has it."""

from __future__ import annotations

import os
import re

import pytest

from headrace.config import ConfigError, RunConfig, load_config
from headrace.config.league import PRESET_LEARNING
from headrace.config.league_placement import placement_of, resources_of
from headrace.config.learning_defaults import LEARNING_DEFAULTS

FILE = """\
environment: {kind: builtin, id: RockPaperScissors}
behaviors:
  RPS:
    trainer_type: ppo
    hyperparameters: {batch_size: 64, beta: 0.5}
    league:
      learners:
        main:
          max_steps: 7000
        other:
          actors: 2
          matches: [{match: newest, against: main}]
          hyperparameters:
            beta: 0.1
"""


def refused(tmp_path, text):
    path = tmp_path / "league.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as found:
        load_config(path)
    return [str(each).removeprefix(str(tmp_path) + os.sep) for each in found.value.mistakes]


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("against: main", "against: mian", "league.yaml:12: behaviors.RPS.league.learners.other.matches.0.against.0:"),
        ("beta: 0.1", "betta: 0.1", "league.yaml:14: behaviors.RPS.other.hyperparameters.betta: unknown key"),
        ("max_steps: 7000", "max_step: 7000", "league.yaml:9: behaviors.RPS.main.max_step: unknown key"),
        ("batch_size: 64", "batch_size: many", "league.yaml:5: behaviors.RPS.main.hyperparameters.batch_size:"),
        ("beta: 0.1", "beta: much", "league.yaml:14: behaviors.RPS.other.hyperparameters.beta: 'much'"),
        (
            "beta: 0.1",
            "beta: 0.1\n  Two: {trainer_type: ppo, league: {decay: 0.5}}",
            "league.yaml:15: behaviors.Two.main.league.decay: 0.5 here, but 0.99 in the league of RPS; all leagues of",
        ),
        (
            "  RPS:",
            "  Two: {trainer_type: ppo}\n  RPS:",
            "league.yaml:3: behaviors.Two: has no league, but RPS has one",
        ),
        ("    league:", "    self_play: {}\n    league:", "league.yaml:6: behaviors.RPS.main.self_play: can't be"),
        ("beha", "default_settings: {league: psro}\nbeha", "league.yaml:2: default_settings.league: is valid only"),
        (
            "beha",
            "pipeline: {hosts: {actors: {replicas: 2}}}\nbeha",
            "league.yaml:2: pipeline.hosts.actors.replicas: 2 conflicts with the league of RPS, whose learners have 3",
        ),
        (
            "actors: 2",
            "placement: {learners: {gpus: 1}}",
            "league.yaml:11: behaviors.RPS.league.learners.other.placement.learners: hosts of kind 'process' can't re",
        ),
        (
            "actors: 2",
            "placement: {actor: {gpus: 1}}",
            "league.yaml:11: behaviors.RPS.league.learners.other.placement.actor: unknown key; did you mean 'actors'",
        ),
        (
            "actors: 2",
            "placement: {device: gpu}",
            "league.yaml:11: behaviors.RPS.league.learners.other.placement.device: 'gpu' is not a torch device",
        ),
        ("learners:", "turn_steps: 9\n      learners:", "league.yaml:7: behaviors.RPS.league.turn_steps: has no eff"),
        (
            FILE[FILE.index("    league:") :],
            "    league: {preset: five, learning: turns}\n",
            "league.yaml:6: behaviors.RPS.main.league.learning: 'turns' needs several learners, but RPS.main is the",
        ),
        (
            FILE[FILE.index("    league:") :],
            "    league: prso\n",
            "league.yaml:6: behaviors.RPS.league: 'prso' is no",
        ),
    ],
)
def test_a_mistake_is_refused_with_its_line(tmp_path, old, new, wanted):
    assert old in FILE
    found = refused(tmp_path, FILE.replace(old, new, 1))
    assert any(each.startswith(wanted) for each in found), found
    assert len({each.split(": ")[0] for each in found}) == 1, "nothing else is wrong"


ON_RAY = "pipeline: {hosts: {actors: {kind: ray}, learners: {kind: ray, resources: {gpus: 1}}}}\n"


@pytest.mark.parametrize(
    ("resources", "wanted"),
    [
        ("{gpu: 1}", "gpu: unknown key; did you mean 'gpus'"),
        ("{custom: {fast: many}}", "custom: 'fast' is 'many'; expected a non-negative number"),
        ("{custom: {'node:10.0.0.7': 0.1}}", "custom.node:10.0.0.7: is a node of a cluster, but without pipeline.ray."),
    ],
)
def test_unavailable_resources_of_a_learner_are_refused_with_their_line(tmp_path, resources, wanted):
    placed = FILE.replace("actors: 2", f"placement: {{learners: {resources}}}")
    (found,) = refused(tmp_path, placed + ON_RAY)
    assert found.startswith(f"league.yaml:11: behaviors.RPS.league.learners.other.placement.learners.{wanted}"), found


def test_each_learner_of_a_league_has_its_place_and_else_that_of_all_hosts(tmp_path):
    path = tmp_path / "league.yaml"
    path.write_text(FILE.replace("actors: 2", "placement: {device: cpu, learners: {}, actors: {cpus: 3}}") + ON_RAY)
    config = load_config(path)
    assert [resources_of(config, "learners", f"RPS.{name}").gpus for name in ("main", "other")] == [1.0, 0.0]
    assert [resources_of(config, "actors", f"RPS.{name}").cpus for name in ("main", "other")] == [None, 3.0]
    assert [placement_of(config, f"RPS.{name}").device for name in ("main", "other")] == [None, "cpu"]


def test_learners_inherit_and_their_own_keys_go_over_those_of_the_behaviour(tmp_path):
    path = tmp_path / "league.yaml"
    path.write_text(FILE)
    config = load_config(path)
    main, other = config.behaviors["RPS.main"], config.behaviors["RPS.other"]
    plain = [each.model_dump()["hyperparameters"] for each in (main, other)]
    assert [(each["beta"], each["batch_size"]) for each in plain] == [(0.5, 64), (0.1, 64)]
    assert main.max_steps == 7000 != other.max_steps
    assert [each.league.learner for each in (main, other)] == ["main", "other"]
    assert config.behavior_settings("RPS") == main
    assert config.known_settings("Ball") is None
    assert config.met_behaviors == ["RPS"]


def test_a_league_goes_through_plain_data_and_back(tmp_path):
    path = tmp_path / "league.yaml"
    path.write_text(FILE)
    config = load_config(path)
    assert RunConfig.from_plain(config.to_plain()).behaviors == config.behaviors
    assert RunConfig.from_plain(config.to_plain()).to_plain() == config.to_plain()


def learned_with(behavior, league="alphastar", learner="main", **sections):
    """What one learner of a behaviour with a preset's league learns with, as plain data."""
    config = RunConfig.from_plain({"behaviors": {"RPS": {"league": league, **behavior}}, **sections})
    return config.to_plain()["behaviors"][f"RPS.{learner}"]


@pytest.mark.parametrize("preset", PRESET_LEARNING)
def test_a_preset_brings_the_settings_that_its_rules_need_and_the_file_overrides_each_of_them(preset):
    brought = PRESET_LEARNING[preset]["ppo"]
    bare = learned_with({}, preset)
    assert bare["trainer_type"] == "ppo"
    for section, keys in brought.items():
        for key, value in keys.items():
            assert bare[section][key] == value or bare[section][key].items() >= value.items()
    own = {"trainer_type": "ppo", "hyperparameters": {"beta": 0.25}, "network_settings": {"activation": "elu"}}
    mine = learned_with(own, preset)
    assert (mine["hyperparameters"].pop("beta"), mine["network_settings"].pop("activation")) == (0.25, "elu")
    del bare["hyperparameters"]["beta"], bare["network_settings"]["activation"]
    assert mine == bare


@pytest.mark.parametrize("preset", PRESET_LEARNING)
def test_a_preset_sets_each_key_for_which_kinds_of_environments_have_defaults(preset):
    """Its results then do not depend on the kind of environment; only the network's width does."""
    brought, table = PRESET_LEARNING[preset]["ppo"], LEARNING_DEFAULTS["ppo"]
    for section in ("hyperparameters", "network_settings"):
        assert table[section].keys() - {"hidden_units"} <= brought[section].keys()
    game = {"kind": "open_spiel", "game": "kuhn_poker", "num_envs": 64}
    assert learned_with({}, preset, environment=game)["hyperparameters"] == learned_with({}, preset)["hyperparameters"]


def test_the_nearest_key_of_a_league_s_learner_wins():
    default = {"trainer_type": "ppo", "hyperparameters": {"beta": 0.1, "num_epoch": 7, "regularization": None}}
    shared = {"hyperparameters": {"beta": 0.2, "batch_size": 77}}
    league = {"preset": "alphastar", "learners": {"main": {"hyperparameters": {"beta": 0.3}}}}
    main, exploiter = (
        learned_with(shared, league, learner, default_settings=default)["hyperparameters"]
        for learner in ("main", "main_exploiter")
    )
    assert (main["beta"], exploiter["beta"]) == (0.3, 0.2), "the learner's own, or else the behaviour's"
    assert (main["batch_size"], main["num_epoch"], main["regularization"]) == (77, 7, None), "not the preset's"
    assert main["learning_rate"] == PRESET_LEARNING["alphastar"]["ppo"]["hyperparameters"]["learning_rate"]


def test_settings_of_a_preset_for_one_trainer_do_not_reach_learners_with_another():
    league = {"preset": "alphastar", "learners": {"league_exploiter": {"trainer_type": "ppo"}}}
    alone = learned_with({"trainer_type": "sac"}, {"learners": {"main": {}}})
    main = learned_with({"trainer_type": "sac"}, league)
    exploiter = learned_with({"trainer_type": "sac"}, league, "league_exploiter")
    assert {**main, "league": None} == {**alone, "league": None}
    assert exploiter["hyperparameters"] == learned_with({}, learner="league_exploiter")["hyperparameters"]


def test_a_preset_survives_serialization():
    config = RunConfig.from_plain({"behaviors": {"RPS": {"league": "alphastar", "trainer_type": "ppo"}}})
    assert RunConfig.from_plain(config.to_plain()).to_plain() == config.to_plain()


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ("hyperparameters: {beta: 0.1}", "hyperparameters: needs trainer_type as well"),
        ("trainer_type: [ppo]", "trainer_type: "),
        ("trainer_type: ppo, hyperparameters: 3", "hyperparameters: "),
        ("network_settings: {activation: [tanh]}", "network_settings.activation: "),
    ],
)
def test_wrong_keys_below_a_preset_are_refused_as_they_are_without_one(tmp_path, keys, wanted):
    (found,) = refused(tmp_path, f"behaviors: {{RPS: {{{keys}, league: five}}}}\n")
    assert found.startswith(f"league.yaml:1: behaviors.RPS.main.{wanted}"), found


TEAMS = """\
environment:
  kind: pettingzoo
  id: a:b
  behaviors:
    striker_*: {{behavior: Striker, team: {striker}}}
    goalie_*: {{behavior: Goalie, team: {goalie}}}
    keeper_*: {{behavior: Goalie, team: {keeper}}}
behaviors:
  Striker: {{trainer_type: ppo, league: {{learners: {{main: {{matches: [{{match: self}}]}}}}}}}}
  Goalie: {{trainer_type: ppo, league: {{learners: {{main: {{matches: [{{match: self}}]}}}}}}}}
"""


@pytest.mark.parametrize(
    ("teams", "lines", "words"),
    [
        ({"striker": 0, "goalie": 0, "keeper": 0}, {6, 7}, "Goalie and Striker both have team 0"),
        ({"striker": 0, "goalie": "null", "keeper": 1}, {6, 7}, "Goalie and Striker both have team 0"),
        ({"striker": 0, "goalie": 1, "keeper": 2}, {7}, "Goalie has several teams"),
        ({"striker": 0, "goalie": "each", "keeper": "each"}, {6, 7}, "Goalie has several teams"),
    ],
)
def test_a_team_of_two_behaviours_with_leagues_is_refused_with_its_line(tmp_path, teams, lines, words):
    found = refused(tmp_path, TEAMS.format(**teams))
    assert {int(re.search(r":(\d+):", each)[1]) for each in found} == lines
    assert words in found[0]


def test_teams_with_a_behaviour_each_may_have_leagues(tmp_path):
    path = tmp_path / "league.yaml"
    path.write_text(TEAMS.format(striker=0, goalie=1, keeper=1))
    assert len(load_config(path).behaviors) == 2
