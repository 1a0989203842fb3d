"""The CSV writer: tables that any spreadsheet reads, whole at every moment, without points twice after a resume."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from full_disk import files_no_larger_than

from headrace.pipeline.reporting.csv_writer import CsvWriter
from headrace.pipeline.reporting.statistics import Summary


def summary(value: float) -> Summary:
    return Summary("mean", mean=value, sum=value, std=0.0, count=1, last=value)


def table(folder: Path, category: str = "B") -> list[dict[str, str]]:
    with (folder / category / "statistics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def opened(folder: Path, resume: bool = False) -> CsvWriter:
    return CsvWriter(folder, resume, wall_clock=lambda: 1.5)


def test_a_row_has_step_time_and_the_numbers_that_tensorboard_shows(tmp_path: Path):
    writer = opened(tmp_path)
    writer.write("B", {"Reward": summary(0.1), "Is Training": summary(1.0)}, 1000)
    writer.write("B", {"Reward": summary(0.2)}, 2000)
    assert (tmp_path / "B/statistics.csv").read_text() == "step,time,Reward\n1000,1.500,0.1\n2000,1.500,0.2\n"


def test_each_behaviour_and_the_pipeline_have_a_file(tmp_path: Path):
    writer = opened(tmp_path)
    for category in ("A/1", "B", "Pipeline"):
        writer.write(category, {"x": summary(1)}, 1)
    assert sorted(path.parent.name for path in tmp_path.glob("*/statistics.csv")) == ["A%2F1", "B", "Pipeline"]


def test_a_statistic_that_comes_later_is_one_column_more_and_one_that_is_absent_an_empty_cell(tmp_path: Path):
    writer = opened(tmp_path)
    writer.write("B", {"x": summary(1)}, 1)
    writer.write("B", {"y": summary(2)}, 2)
    writer.write("B", {"x": summary(3), "y": summary(4)}, 3)
    assert [(row["step"], row["x"], row["y"]) for row in table(tmp_path)] == [
        ("1", "1.0", ""),
        ("2", "", "2.0"),
        ("3", "3.0", "4.0"),
    ]


def test_names_with_commas_and_quotes_are_read_back(tmp_path: Path):
    opened(tmp_path).write("B", {'a, "b"': summary(1)}, 1)
    assert table(tmp_path)[0]['a, "b"'] == "1.0"


def test_a_new_run_begins_new_tables(tmp_path: Path):
    opened(tmp_path).write("B", {"x": summary(1)}, 1)
    opened(tmp_path)
    assert not (tmp_path / "B/statistics.csv").exists()


@pytest.mark.parametrize("left", ["", "3,1.5", '3,1.500,"0.', "3,1.500,\n"])
def test_a_resumed_run_drops_rows_beyond_its_checkpoint(tmp_path: Path, left: str):
    """Whatever a crash has left of the last row."""
    first = opened(tmp_path)
    for step in (1, 2, 3):
        first.write("B", {"x": summary(step)}, step)
    with (tmp_path / "B/statistics.csv").open("a") as file:
        file.write(left)
    again = opened(tmp_path, resume=True)
    again.write("B", {"x": summary(20), "y": summary(5)}, 2)
    assert [(row["step"], row["x"], row["y"]) for row in table(tmp_path)] == [("1", "1.0", ""), ("2", "20.0", "5.0")]


def test_a_lost_learner_takes_its_rows_back(tmp_path: Path):
    writer = opened(tmp_path)
    for step in (1, 2, 3):
        writer.write("B", {"x": summary(step)}, step)
    writer.rewind("B", 1)
    writer.write("B", {"x": summary(9)}, 2)
    assert [(row["step"], row["x"]) for row in table(tmp_path)] == [("1", "1.0"), ("2", "9.0")]


def test_a_full_disk_leaves_only_complete_rows(tmp_path: Path):
    writer = opened(tmp_path)
    writer.write("B", {"x": summary(1)}, 1)
    before = (tmp_path / "B/statistics.csv").read_bytes()
    with files_no_larger_than(len(before) + 3), pytest.raises(OSError, match="too large"):
        writer.write("B", {"x": summary(2)}, 2)
    assert (tmp_path / "B/statistics.csv").read_bytes() == before
    writer.write("B", {"x": summary(3)}, 3)
    assert [row["step"] for row in table(tmp_path)] == ["1", "3"]


def test_a_file_that_was_removed_is_started_again(tmp_path: Path):
    writer = opened(tmp_path)
    writer.write("B", {"x": summary(1)}, 1)
    (tmp_path / "B/statistics.csv").unlink()
    writer.write("B", {"x": summary(2)}, 2)
    assert [row["step"] for row in table(tmp_path)] == ["2"]
