"""Tournaments: who may play, and what is told of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from PIL import Image

from headrace.config import RunConfig
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.policies.tournament import (
    Standing,
    TournamentTable,
    entrants_of,
    found_below,
    run_folder_of,
    standings_table,
)

GAME = {"environment": {"kind": "builtin", "id": "Volley", "num_envs": 4, "options": {"points_to_win": 1}}}


def table_of(players, games=6, environment=GAME):
    return TournamentTable(RunConfig.from_plain({**environment, "behaviors": {"Volley": {}}}), players, games, 3, False)


def run_with(folder: Path, *steps: int) -> Path:
    (folder / "Volley").mkdir(parents=True)
    (folder / "configuration.yaml").touch()
    for step in steps:
        (folder / "Volley" / f"Volley-{step}.pt").touch()
    return folder


def test_a_single_run_plays_its_own_policies_and_a_scripted_or_random_player(tmp_path):
    run = run_with(tmp_path / "first", 2000, 1000)
    ours = [f"{run}@1000", f"{run}@2000"]
    assert entrants_of([str(run)], "results", "Volley") == [*ours, "scripted"]
    assert entrants_of([str(run)], "results", None) == [*ours, "random"]
    assert entrants_of(["first@all", "random"], str(tmp_path), None) == [*ours, "random"], "a run id is enough"


def test_a_run_is_found_from_all_that_names_a_policy_of_it(tmp_path):
    run = run_with(tmp_path / "first", 10)
    named = [run, f"{run}@best", run / "Volley", run / "Volley" / "Volley-10.pt"]
    assert [run_folder_of(str(each)) for each in named] == [run] * 4
    assert run_folder_of("scripted") is None
    assert found_below("first@10", str(tmp_path)) == f"{run}@10"


@pytest.mark.parametrize(
    ("players", "message"),
    [
        (["random", "nobody"], "nobody: unknown player; expected the folder of a run"),
        (["random", "player"], "player: unknown player"),
        (["random", "random"], "random is given twice"),
        (["random"], "random has no opponent"),
        (["results/none@all", "random"], "results/none@all: there is no step at which"),
    ],
)
def test_players_that_can_not_play_are_named(players, message):
    with pytest.raises(RunError, match=f"^--tournament {message}"):
        entrants_of(players, "results", None)


async def test_the_stronger_one_is_rated_higher_and_the_files_say_the_same(tmp_path):
    table = table_of(["random", "scripted"])
    await table.play(asyncio.Event())
    best, worst = table.standings()
    assert (best.name, worst.name) == ("scripted", "random")
    assert best.rating > 1200 > worst.rating
    assert best.won + best.drawn + best.lost == worst.won + worst.drawn + worst.lost == 6
    data, picture = table.write(tmp_path / "new")
    written = json.loads(data.read_text())
    assert [each["name"] for each in written["players"]] == ["scripted", "random"]
    assert [(each["player"], each["opponent"]) for each in written["results"]] == [
        ("random", "scripted"),
        ("scripted", "random"),
    ]
    with Image.open(picture) as image:
        assert min(image.size) > 100


async def test_the_same_seed_gives_the_same_games():
    first, second = (table_of(["random", "scripted"], 4) for _ in range(2))
    await first.play(asyncio.Event())
    await second.play(asyncio.Event())
    assert first.results == second.results


async def test_all_who_can_not_play_this_game_are_named_before_the_first_one(tmp_path):
    (tmp_path / "no.onnx").write_bytes(b"nothing")
    players = ["scripted", "absent/run", str(tmp_path / "no.onnx")]
    table = table_of(players)
    with pytest.raises(RunError) as caught:
        await table.play(asyncio.Event())
    lines = str(caught.value).splitlines()
    assert len(lines) == 2, "once for both sides"
    assert lines[0].startswith("--tournament absent/run: can't play: there is no file or folder absent/run")
    assert lines[1].startswith(f"--tournament {tmp_path / 'no.onnx'}: can't play: ")
    assert not table.results


def test_unitys_games_are_not_for_it():
    with pytest.raises(RunError, match="supports built-in, PettingZoo and OpenSpiel games, but not Unity games"):
        table_of(["random", "a.onnx"], environment={})


def test_the_table_has_skills_if_openskill_is_installed():
    plain = Standing("a", 1210.4, 30.2, None, 3, 1, 0)
    assert standings_table([plain]).splitlines() == [
        "player  ELO (95 %)  games  points  won  drawn  lost",
        "a        1210 ± 30      4  87.5 %    3      1     0",
    ]
    assert "skill" in standings_table([Standing("a", 1210.4, 30.2, 21.5, 3, 1, 0)])
