"""Scores in main: what actors report is summed up, an actor that is replaced plays its share again."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.config import RunConfig
from headrace.pipeline.control import EpisodesScored
from headrace.pipeline.main.run_part import Run
from headrace.pipeline.parts.scores import ScoreBoard
from headrace.pipeline.run_folder.folder import RunFolder


class Board(ScoreBoard):
    """The scores of a run with such a folder, and whether it was to end."""

    def __init__(self, folder: RunFolder, episodes: int | None, actors: int = 1) -> None:
        config = RunConfig.from_plain(
            {
                "environment": {"kind": "gymnasium", "id": "CartPole-v1"},
                "behaviors": {"Pole": {}},
                "inference": {"episodes": episodes},
                "pipeline": {"hosts": {"actors": {"replicas": actors}}},
            }
        )
        self.ended = False
        plan = SimpleNamespace(config=config, folder=folder)
        super().__init__(cast("Run", SimpleNamespace(plan=plan, shutdown=SimpleNamespace(finish=self.finish))))

    def finish(self) -> None:
        self.ended = True

    def score(self, actor: str, *returns: float, complete: bool = False) -> None:
        host: Any = SimpleNamespace(plan=SimpleNamespace(name=actor))
        self.receive(host, EpisodesScored({"Pole": [[*returns], [1] * len(returns), [0, 0, 0]]}, complete))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(str(tmp_path), "run", resume=False, force=False, configuration="")


def test_all_actors_have_to_be_done(folder):
    board = Board(folder, 3, actors=2)
    board.score("actor-0", 1.0, complete=True)
    board.score("actor-1", 5.0)
    assert not board.ended
    board.score("actor-1", 6.0, complete=True)
    assert board.ended
    assert board.report()["scores"]["Pole"].mean == pytest.approx(4.0)


@pytest.mark.parametrize(("episodes", "mean"), [(1, 7.0), (None, 4.0)])
def test_a_replaced_actor_plays_its_share_again_if_there_are_shares(folder, episodes, mean):
    board = Board(folder, episodes)
    board.score("actor-0", 1.0)
    board.actor_replaced("actor-0")
    board.score("actor-0", 7.0, complete=episodes is not None)
    assert board.ended is (episodes is not None)
    assert board.report()["scores"]["Pole"].mean == mean


def test_the_file_says_whether_all_episodes_were_played(folder, caplog):
    board = Board(folder, 2)
    board.score("actor-0", 3.0)
    board.report()
    written = json.loads((folder.run_logs / "inference.json").read_text())
    assert (written["episodes"], written["complete"], written["behaviors"]["Pole"]["returns"]) == (2, False, [3.0])
    assert "won" not in written["behaviors"]["Pole"]
    assert "Fewer than the requested 2 episodes have ended for: Pole." in caplog.text


def test_without_episodes_there_is_no_score(folder, caplog):
    board = Board(folder, None)
    board.score("actor-0")
    board.report()
    assert "No episode has ended, so there is no score." in caplog.text
    assert not (folder.run_logs / "inference.json").exists()


def test_scores_that_can_not_be_written_are_printed_all_the_same(folder, caplog):
    caplog.set_level(logging.INFO)
    board = Board(folder, None)
    board.score("actor-0", 2.0)
    folder.run_logs.rmdir()
    folder.run_logs.write_text("in the way")
    board.report()
    assert "2.000 ± 0.000" in caplog.text
    assert "could not be written" in caplog.text
