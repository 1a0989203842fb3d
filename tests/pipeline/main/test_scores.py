"""Scores in main: what actors report is summed up, an actor that is replaced plays its share again."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from headrace.config import RunConfig
from headrace.pipeline.control.messages import Scored
from headrace.pipeline.main.scores import ScoreBoard
from headrace.pipeline.run_folder.folder import RunFolder


def board_of(episodes: int | None, actors: int = 1) -> ScoreBoard:
    hosts = {"hosts": {"actors": {"replicas": actors}}}
    return ScoreBoard(
        RunConfig.from_plain(
            {
                "environment": {"kind": "gymnasium", "id": "CartPole-v1"},
                "behaviors": {"Pole": {}},
                "inference": {"episodes": episodes},
                "pipeline": hosts,
            }
        )
    )


def scored(*returns: float, complete: bool = False) -> Scored:
    return Scored({"Pole": [[*returns], [1] * len(returns), [0, 0, 0]]}, complete)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(str(tmp_path), "run", resume=False, force=False, configuration="")


def test_all_actors_have_to_be_done(folder):
    board = board_of(3, actors=2)
    assert not board.receive("actor-0", scored(1.0, complete=True))
    assert not board.receive("actor-1", scored(5.0))
    assert board.receive("actor-1", scored(6.0, complete=True))
    assert board.scores(folder)["Pole"].mean == pytest.approx(4.0)


@pytest.mark.parametrize(("episodes", "mean"), [(1, 7.0), (None, 4.0)])
def test_a_replaced_actor_plays_its_share_again_where_there_are_shares(folder, episodes, mean):
    board = board_of(episodes)
    board.receive("actor-0", scored(1.0, complete=episodes is not None))
    board.actor_replaced("actor-0")
    assert board.receive("actor-0", scored(7.0, complete=episodes is not None)) is (episodes is not None)
    assert board.scores(folder)["Pole"].mean == mean


def test_the_file_says_whether_all_episodes_were_played(folder, caplog):
    board = board_of(2)
    board.receive("actor-0", scored(3.0))
    board.publish(board.scores(folder), folder)
    written = json.loads((folder.run_logs / "inference.json").read_text())
    assert (written["episodes"], written["complete"], written["behaviors"]["Pole"]["returns"]) == (2, False, [3.0])
    assert "won" not in written["behaviors"]["Pole"]
    assert "Fewer episodes than the 2 that were asked for have ended of: Pole." in caplog.text


def test_no_episode_is_no_score(folder, caplog):
    board = board_of(None)
    board.receive("actor-0", scored())
    board.publish(board.scores(folder), folder)
    assert "No episode has ended, so there is no score." in caplog.text
    assert not (folder.run_logs / "inference.json").exists()


def test_scores_that_can_not_be_written_are_printed_all_the_same(folder, caplog):
    caplog.set_level(logging.INFO)
    board = board_of(None)
    board.receive("actor-0", scored(2.0))
    folder.run_logs.rmdir()
    folder.run_logs.write_text("in the way")
    board.publish(board.scores(folder), folder)
    assert "2.000 ± 0.000" in caplog.text
    assert "could not be written" in caplog.text
