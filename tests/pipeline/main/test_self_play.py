"""Self-play's place in main: one part of checkpoints for all behaviours, and the league's files."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from fakes import policy_update

from headrace.config import RunConfig
from headrace.pipeline.control import PartSaved
from headrace.pipeline.main.run_plan import RunPlan
from headrace.pipeline.main.self_play import SelfPlay, check_samplers, make_sampler
from headrace.pipeline.reporting.league_files import write_leagues
from headrace.pipeline.reporting.statistics import StatisticsCollector
from headrace.pipeline.roles.stages import StageHost
from headrace.pipeline.run_folder.folder import RunFolder
from headrace.pipeline.run_folder.training_status import BehaviorStatus, TrainingStatus
from headrace.stages.errors import LoadError
from headrace.stages.ghost.policy_history import NEWEST
from headrace.stages.publisher import PolicyPublisher, PublisherPort
from headrace.stages.trainer.report import TrainerReport


@pytest.fixture
def parts():
    return []


@pytest.fixture
def assigned():
    return []


@pytest.fixture
def plan(tmp_path):
    config = RunConfig.from_plain({"behaviors": {"Hider": {"self_play": {}}, "Seeker": {"self_play": {}}}})
    with RunFolder.create(tmp_path, "run") as folder:
        yield RunPlan(config, folder, seed=0, resumed=None)


def host_of(kind, plan, send):
    return kind("main", plan.folder.path, plan.seed, None, StatisticsCollector(0), plan.resumed, send)


@pytest.fixture
def self_play(plan, parts, assigned):
    """Hiders and seekers, who have met."""
    stages = host_of(StageHost, plan, parts.append)
    made = SelfPlay(plan.config, stages, PolicyPublisher(PublisherPort(assign=assigned.append)), seed=1)
    for name, team in (("Hider", 0), ("Seeker", 1)):
        made.add(name)
        made.add_behavior(f"{name}?team={team}")
    for name in ("Hider", "Seeker"):
        list(made.policy_stage("Striker").process(policy_update(name, 0)))
    return made


def reach(self_play, behavior, number):
    self_play.shared.hooks(f"ghost-{behavior}", behavior).save_part(f"ghost-{behavior}", number, {})


def report(behavior, done):
    return TrainerReport(behavior, 10, 0, done, None, 0, {})


def saved(parts):
    assert all(isinstance(part, PartSaved) for part in parts)
    return [(part.name, part.number) for part in parts]


def test_the_part_is_written_once_when_the_barrier_has_come_through_all_ways(self_play, parts):
    self_play.shared.begin_checkpoint()
    reach(self_play, "Seeker", 4)
    assert not parts
    reach(self_play, "Hider", 4)
    assert saved(parts) == [("ghost@main", 4)]
    self_play.shared.begin_checkpoint()
    for name in ("Hider", "Seeker"):
        reach(self_play, name, 5)
    assert saved(parts)[1:] == [("ghost@main", 5)]


def test_a_barrier_of_an_abandoned_checkpoint_leaves_the_next_one_complete(self_play, parts):
    self_play.shared.begin_checkpoint()
    reach(self_play, "Seeker", 4)
    self_play.shared.begin_checkpoint()
    reach(self_play, "Seeker", 5)
    reach(self_play, "Hider", 4)
    assert saved(parts) == [("ghost@main", 4)]
    reach(self_play, "Hider", 5)
    assert saved(parts) == [("ghost@main", 4), ("ghost@main", 5)]


def test_a_resumed_run_takes_up_its_part(self_play, plan):
    class Saved(StageHost):
        def saved_state(self, stage):
            return self_play.controller.state_dict() if stage == "ghost" else None

    stages = host_of(Saved, plan, lambda part: None)
    again = SelfPlay(plan.config, stages, PolicyPublisher(), seed=2)
    for name in ("Hider", "Seeker"):
        again.add(name)
    assert repr(again.controller.state_dict()) == repr(self_play.controller.state_dict())


def test_a_rating_that_ml_agents_left_takes_the_place_of_the_initial_one(plan):
    plan.folder.write_training_status(
        TrainingStatus({name: BehaviorStatus(elo=1310.0) for name in ("Hider", "Seeker")})
    )
    assert plan.ratings_left() == {}
    left = replace(plan, left={"Hider": 100}).ratings_left()
    again = SelfPlay(plan.config, host_of(StageHost, plan, lambda part: None), PolicyPublisher(), 2, ratings=left)
    for name in ("Hider", "Seeker"):
        again.add(name)
    assert [history.records[NEWEST].rating for history in again.controller.histories.values()] == [1310, 1200]


def test_the_league_is_written_for_each_behaviour(self_play, tmp_path):
    write_leagues(self_play.reports(), tmp_path)
    for name in ("Hider", "Seeker"):
        league = json.loads((tmp_path / name / "league.json").read_text())
        assert (league["behavior"], league["rating"], len(league["snapshots"])) == (name, 1200.0, 1)
        assert (tmp_path / name / "league.png").read_bytes().startswith(b"\x89PNG")


def test_a_league_that_can_t_be_written_does_not_fail_the_run(self_play, tmp_path, caplog):
    (tmp_path / "Hider").write_text("in the way")
    write_leagues(self_play.reports(), tmp_path)
    assert "the league of Hider could not be written" in caplog.text
    assert (tmp_path / "Seeker" / "league.json").exists()


# Samplers. -----------------------------------------------------------------------------------------------------------


def config(**self_play):
    return RunConfig.from_plain({"behaviors": {"Ball": {"self_play": self_play}}})


def test_a_sampler_without_choose_is_refused():
    (mistake,) = check_samplers(config(opponents="json:JSONDecoder"))
    assert str(mistake) == (
        "behaviors.Ball.self_play.opponents: json:JSONDecoder has no method choose(candidates, random)"
    )


def test_arguments_that_a_class_does_not_take_are_reported():
    wrong = config(opponents="headrace.stages.ghost.policy_history:UniformOpponents", opponents_with={"power": 1})
    with pytest.raises(LoadError, match=r"behaviors\.Ball\.self_play\.opponents: .*does not accept .*power"):
        make_sampler(wrong, "Ball")
