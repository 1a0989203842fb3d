"""The table of single episodes: as Stable-Baselines3's Monitor has it, and whole after a resume and a crash."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from full_disk import files_no_larger_than

from headrace.pipeline.reporting.csv_writer import EpisodeTable


def table(folder: Path, *seconds: float) -> EpisodeTable:
    return EpisodeTable("Ball", lambda: folder, iter(seconds).__next__)


def rows(folder: Path) -> list[str]:
    return (folder / "Ball" / "monitor.csv").read_text().splitlines()


def test_each_episode_is_a_row_below_monitors_two_lines(tmp_path):
    told = table(tmp_path, 100.0, 101.5, 103.0)
    told.add(2, [1.25, -3.0], [7, 9])
    told.add(3, [0.1234567], [11])
    head, *rest = rows(tmp_path)
    assert json.loads(head[1:]) == {"t_start": 100.0, "env_id": "Ball"}
    assert rest == ["r,l,t,episode", "1.25,7,1.5,1", "-3.0,9,1.5,2", "0.123457,11,3.0,3"]


def test_a_resumed_run_drops_episodes_after_its_checkpoint(tmp_path):
    table(tmp_path, 100.0, 101.0).add(3, [1.0, 2.0, 3.0], [1, 1, 1])
    path = tmp_path / "Ball" / "monitor.csv"
    path.write_text(path.read_text() + "4.0,1")  # a crash has cut the last row short
    table(tmp_path, 200.0, 205.0).add(3, [5.0], [2])
    assert rows(tmp_path)[1:] == ["r,l,t,episode", "1.0,1,1.0,1", "2.0,1,1.0,2", "5.0,2,105.0,3"]


@pytest.mark.parametrize(
    "text", ["", "#{}\nr,l,t,episode\n", "r,l,t\n1,2,3\n", '#{"t_start": 1}\nr,l,t,episode\nx,y\n']
)
def test_a_table_that_cannot_be_read_is_put_aside_and_named(tmp_path, caplog, text):
    path = tmp_path / "Ball" / "monitor.csv"
    path.parent.mkdir()
    path.write_text(text)
    table(tmp_path, 200.0, 201.0).add(5, [2.0], [1])
    assert rows(tmp_path)[2:] == ["2.0,1,1.0,5"]
    assert (tmp_path / "Ball" / "monitor.csv.damaged").read_text() == text
    assert "monitor.csv can't be read. Starting a new file; the old one is now monitor.csv.damaged" in caplog.text


def test_a_new_run_starts_its_own_table(tmp_path):
    table(tmp_path, 100.0, 101.0).add(1, [1.0], [1])
    table(tmp_path, 200.0, 201.0).add(1, [2.0], [1])
    assert rows(tmp_path)[1:] == ["r,l,t,episode", "2.0,1,1.0,1"]


def test_a_full_disk_loses_rows_and_is_reported_once(tmp_path, caplog):
    told = table(tmp_path, *range(9))
    told.add(1, [1.0], [1])
    with files_no_larger_than((tmp_path / "Ball" / "monitor.csv").stat().st_size):
        told.add(2, [2.0], [1])
        told.add(3, [3.0], [1])
    told.add(4, [4.0], [1])
    assert [row.rpartition(",")[2] for row in rows(tmp_path)[2:]] == ["1", "4"]
    assert caplog.text.count("monitor.csv can't be written: ") == 1
