"""A run with a league, from its file to its policies: what it writes, how it goes on, and how it is played."""

from __future__ import annotations

import json
import shutil
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from runs import run_here

from headrace import load, load_policy
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.policies.tournament import entrants_of
from headrace.pipeline.reporting.league_files import draw_leagues
from headrace.stages.league.pool import Pool, read_member

SEEN = np.ones(1, np.float32)
LEAGUE: dict[str, Any] = {
    "environment": {"kind": "builtin", "id": "RockPaperScissors", "num_envs": 8},
    "behaviors": {
        "RPS": {
            "trainer_type": "ppo",
            "hyperparameters": {"batch_size": 32, "buffer_size": 128},
            "network_settings": {"hidden_units": 8, "num_layers": 1},
            "max_steps": 800,
            "summary_freq": 400,
            "checkpoint_interval": 300,
            "league": {
                "learners": {
                    "main": {"matches": [{"match": "self"}, {"match": "pfsp"}], "freeze": {"at_most": 200}},
                    "exploiter": {
                        "matches": [{"match": "newest", "against": "main"}],
                        "freeze": {"at_most": 200, "first": False},
                        "reset": {"probability": 1.0},
                        "hyperparameters": {"beta": 0.1},
                    },
                }
            },
        }
    },
    "pipeline": {"hosts": {"actors": {"kind": "inline"}, "learners": {"kind": "inline"}}},
}


def report_in(folder):
    return json.loads((folder / "RPS" / "league.json").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return run_here(LEAGUE, tmp_path_factory.mktemp("league"), "first").folder


@pytest.mark.lengthy
def test_a_league_writes_its_pool_its_learners_and_its_report(folder):
    pool = Pool(folder / "RPS" / "league")
    assert {member.learner for member in pool.members} == {"main", "exploiter"}
    assert len(pool.members) >= 4
    for member in pool.members:
        assert read_member(pool.folder, member).behavior_id.startswith(f"RPS.{member.learner}")
    report = report_in(folder)
    assert [each["learner"] for each in report["learners"]] == ["main", "exploiter"]
    assert len(report["members"]) == len(pool.members)
    assert sum(map(sum, report["games"])) > 0
    assert (folder / "RPS" / "league.png").read_bytes().startswith(b"\x89PNG")
    assert draw_leagues(folder) == [folder / "RPS" / "league.png"]


@pytest.mark.lengthy
def test_a_policy_of_a_league_is_loaded_by_the_name_of_its_learner(folder):
    first = load_policy(folder)
    assert first.behavior == load_policy(folder, "RPS").behavior == load_policy(folder / "RPS").behavior == "RPS.main"
    assert load_policy(folder, "RPS.exploiter").behavior == "RPS.exploiter"
    member = load_policy(folder, checkpoint="member-0")
    assert (member.behavior, member.step) == ("RPS.main", 0)
    assert load_policy(member.file).distribution(SEEN).probabilities[0] == pytest.approx(
        member.distribution(SEEN).probabilities[0]
    )
    with pytest.raises(RunError, match=r"has no learner RPS.explorer; expected RPS.main, RPS.exploiter; did you mean"):
        load_policy(folder, "RPS.explorer")
    with pytest.raises(RunError, match="holds no member-99; available: member-0 to member-"):
        load_policy(f"{folder}@member-99")


@pytest.mark.lengthy
def test_the_mixture_draws_a_member_for_each_episode(folder):
    mixture = load_policy(folder, mixture=True, seed=3)
    assert mixture.behavior == "RPS"
    assert sum(mixture.probabilities) == pytest.approx(1.0)
    assert {mixture.reset().step for _ in range(60)} == {member.step for member in mixture.members}
    assert mixture.predict(SEEN).action["discrete"] in (0, 1, 2)
    with pytest.raises(RunError, match="checkpoint chooses one policy"):
        load_policy(folder, checkpoint="best", mixture=True)  # type: ignore[call-overload]  # as typed callers know


def test_a_mixture_with_a_script_and_a_file_without_its_pool_are_refused(folder, tmp_path):
    copied = tmp_path / "run"
    shutil.copytree(folder, copied)
    index, report = (json.loads((copied / "RPS" / name).read_text()) for name in ("league/pool.json", "league.json"))
    index["members"][0] |= {"use": "random", "name": "chance"}
    (copied / "RPS" / "league" / "pool.json").write_text(json.dumps(index))
    assert report["mixture"][0][0] == 0
    with pytest.raises(RunError, match=r"member-0 of the mixture is chance \(random\), which is not a loadable policy"):
        load_policy(copied, mixture=True)
    alone = shutil.copy(load_policy(folder, checkpoint="member-0").file, tmp_path)
    with pytest.raises(RunError, match="is not a member of the pool in its folder"):
        load_policy(alone)


def test_a_tournament_includes_a_leagues_members_and_newest_learners(folder):
    found = entrants_of([str(folder)], "results", "RockPaperScissors")
    members = len(report_in(folder)["members"])
    assert found == [
        *(f"{folder}@member-{number}" for number in range(members)),
        *(str(folder / name) for name in ("RPS.main", "RPS.exploiter")),
    ]
    assert entrants_of([f"{folder / 'RPS'}@all", "random"], "results", "RockPaperScissors")[-2:] == [
        found[-1],
        "random",
    ]


def test_a_league_that_is_saved_in_one_file_has_its_pool(folder, tmp_path):
    back = load(load(folder).save(tmp_path / "one"), results_dir=tmp_path).folder
    assert [each.name for each in sorted((back / "RPS" / "league").iterdir())] == [
        each.name for each in sorted((folder / "RPS" / "league").iterdir())
    ]
    assert load_policy(back, mixture=True).probabilities == load_policy(folder, mixture=True).probabilities


@pytest.mark.lengthy
def test_a_league_is_resumed(folder):
    before = report_in(folder)
    longer = {**LEAGUE, "behaviors": {"RPS": {**LEAGUE["behaviors"]["RPS"], "max_steps": 1000}}}
    run_here(longer, folder.parent, "first", resume=True)
    after = report_in(folder)
    assert after["members"][: len(before["members"])] == before["members"]
    assert len(after["members"]) > len(before["members"])
    assert after["learners"][0]["step"] > before["learners"][0]["step"]


NOTES = """
from pathlib import Path

from headrace import Stage, TrajectoryBatch


class Notes(Stage[TrajectoryBatch, TrajectoryBatch]):
    def __init__(self, file):
        self._file = Path(file)

    def process(self, batch):
        with self._file.open("a") as file:
            file.write(f"{batch.behavior_id} {batch.credits}\\n")
        yield batch
"""


@pytest.mark.lengthy
def test_learners_take_turns(tmp_path, monkeypatch):
    (tmp_path / "turn_notes.py").write_text(NOTES)
    monkeypatch.syspath_prepend(tmp_path)
    league = LEAGUE["behaviors"]["RPS"]["league"] | {"learning": "turns"}
    settings = {**LEAGUE["behaviors"]["RPS"], "league": league}
    stages = [{"use": "turn_notes:Notes", "with": {"file": str(tmp_path / "notes")}}]
    config = {**LEAGUE, "behaviors": {"RPS": settings}, "pipeline": {"deterministic": True, "stages": stages}}
    folder = run_here(config, tmp_path, "run").folder
    lines = [line.split() for line in (tmp_path / "notes").read_text().splitlines()]
    turns = [
        (learner.partition("?")[0], sum(int(steps) for _, steps in group))
        for learner, group in groupby(lines, lambda line: line[0].partition("?")[0])
    ]
    assert [learner for learner, _ in turns[:6]] == ["RPS.main", "RPS.exploiter"] * 3
    late = LEAGUE["behaviors"]["RPS"]["hyperparameters"]["buffer_size"]
    assert all(200 - late <= steps <= 200 + late for _, steps in turns[:6]), "an update's steps may be on their way"
    assert report_in(folder)["turn"] in {"main", "exploiter"}


@pytest.mark.lengthy
def test_inference_plays_a_league_with_its_first_learner(folder):
    played = {**LEAGUE, "inference": {"episodes": 10}}
    result = run_here(played, folder.parent, "first", inference=True)
    assert set(result.behaviors) == {"RPS"}
    scores = json.loads((folder / "run_logs" / "inference.json").read_text())
    assert "RPS?team=0" in json.dumps(scores)
