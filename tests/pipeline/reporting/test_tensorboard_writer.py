"""Specifications of the TensorBoard events, read back with TensorBoard itself."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import numpy as np
import pytest
from full_disk import files_no_larger_than
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from headrace.pipeline.reporting.statistics import StatisticsCollector, Summary
from headrace.pipeline.reporting.writers import TensorboardWriter

REWARD = "Environment/Cumulative Reward"


def summary(value: float, how: str = "mean") -> Summary:
    return Summary(how, value, 10 * value, 0.0, 10, value + 1)


def read(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0, "tensors": 0}).Reload()


def points(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read(folder).Scalars(tag)]


def test_a_statistic_is_a_scalar_under_its_name_at_the_nominal_step(tmp_path):
    writer = TensorboardWriter(tmp_path, resume=False)
    for step in (1000, 2000):
        writer.write("Tennis", {"Policy/Learning Rate": summary(step / 4)}, step)
    writer.close()
    assert points(tmp_path / "Tennis", "Policy/Learning Rate") == [(1000, 250.0), (2000, 500.0)]


def test_a_histogram_has_its_mean_as_a_scalar_and_its_distribution(tmp_path):
    collector = StatisticsCollector()
    collector.extend("Tennis", REWARD, np.arange(100.0))
    writer = TensorboardWriter(tmp_path, resume=False)
    writer.write("Tennis", collector.summaries("Tennis"), 1000)
    writer.close()
    assert points(tmp_path / "Tennis", REWARD) == [(1000, 49.5)]
    [event] = read(tmp_path / "Tennis").Histograms(f"{REWARD}_hist")
    histogram = event.histogram_value
    assert (event.step, histogram.num, histogram.min, histogram.max) == (1000, 100, 0, 99)
    assert (histogram.sum, histogram.sum_squares) == (4950, pytest.approx(328350))
    assert sum(histogram.bucket) == pytest.approx(100)
    assert histogram.bucket_limit[-1] == 99


def test_every_category_has_its_own_folder(tmp_path):
    writer = TensorboardWriter(tmp_path, resume=False)
    writer.write("Tennis", {"x": summary(1.0)}, 1)
    writer.write("Pipeline", {"Queue/Depth": summary(2.0)}, 1)
    writer.write("odd/name", {"x": summary(3.0)}, 1)
    writer.close()
    assert {folder.name for folder in tmp_path.iterdir()} == {"Tennis", "Pipeline", "odd%2Fname"}
    assert read(tmp_path / "Pipeline").Tags()["scalars"] == ["Queue/Depth"]


def test_statistics_meant_for_other_writers_do_not_show(tmp_path):
    writer = TensorboardWriter(tmp_path, resume=False)
    writer.write("Tennis", {"Is Training": summary(1.0), "Step": summary(5.0), "x": summary(1.0)}, 1)
    writer.close()
    assert read(tmp_path / "Tennis").Tags()["scalars"] == ["x"]


def test_hyperparameters_are_a_text(tmp_path):
    writer = TensorboardWriter(tmp_path, resume=False)
    writer.add_property("Tennis", "hyperparameters", {"batch_size": 64, "nested": {"a": 1}})
    writer.add_property("Tennis", "something else", 3)
    writer.close()
    events = read(tmp_path / "Tennis")
    assert events.Tags()["tensors"] == ["Hyperparameters/text_summary"]
    [text] = events.Tensors("Hyperparameters/text_summary")
    assert text.tensor_proto.string_val[0].decode() == "\tbatch_size:\t64\n\tnested:\t\n\t  a:\t1"
    assert events.SummaryMetadata("Hyperparameters/text_summary").plugin_data.plugin_name == "text"


def write_a_run(run_folder: Path, *steps: int, resume: bool, value: float) -> None:
    writer = TensorboardWriter(run_folder, resume=resume)
    for step in steps:
        writer.write("Tennis", {"x": summary(value)}, step)
    writer.close()


def test_a_new_run_deletes_the_event_files_of_an_old_one_and_nothing_else(tmp_path):
    write_a_run(tmp_path, 1, 2, resume=False, value=1.0)
    (tmp_path / "Tennis" / "checkpoint.pt").write_bytes(b"1")
    write_a_run(tmp_path, 1, resume=False, value=2.0)
    assert points(tmp_path / "Tennis", "x") == [(1, 2.0)]
    assert (tmp_path / "Tennis" / "checkpoint.pt").exists()


def test_a_resumed_run_continues_the_curves_from_its_checkpoint(tmp_path):
    write_a_run(tmp_path, 1, 2, 3, resume=False, value=1.0)  # dies at 3, its last checkpoint is at 1
    write_a_run(tmp_path, 2, 3, 4, resume=True, value=2.0)
    assert len(list((tmp_path / "Tennis").iterdir())) == 2
    assert points(tmp_path / "Tennis", "x") == [(1, 1.0), (2, 2.0), (3, 2.0), (4, 2.0)]


def test_a_rewound_behaviour_continues_with_one_curve(tmp_path):
    writer = TensorboardWriter(tmp_path, resume=False)
    for step in (1000, 2000, 3000):
        writer.write("Tennis", {REWARD: summary(1.0)}, step)
    writer.write("Other", {REWARD: summary(1.0)}, 3000)
    writer.rewind("Tennis", 1500)
    for step in (2000, 3000):
        writer.write("Tennis", {REWARD: summary(2.0)}, step)
    writer.close()
    assert points(tmp_path / "Tennis", REWARD) == [(1000, 1.0), (2000, 2.0), (3000, 2.0)]
    assert points(tmp_path / "Other", REWARD) == [(3000, 1.0)]


def test_a_full_disk_leaves_whole_records_and_writing_continues_once_there_is_space(tmp_path):
    writer = TensorboardWriter(tmp_path, resume=False)
    with files_no_larger_than(500):
        for step in range(20):
            with contextlib.suppress(OSError):
                writer.write("Tennis", {REWARD: summary(1.0)}, step)
    before = [step for step, _ in points(tmp_path / "Tennis", REWARD)]
    assert before == list(range(len(before)))
    assert 1 < len(before) < 20
    writer.write("Tennis", {REWARD: summary(1.0)}, 20)
    writer.close()
    assert [step for step, _ in points(tmp_path / "Tennis", REWARD)] == [*before, 20]


def test_statistics_continue_in_a_new_file_if_the_folder_was_removed(tmp_path, caplog):
    writer = TensorboardWriter(tmp_path, resume=False)
    writer.write("Tennis", {REWARD: summary(1.0)}, 1)
    shutil.rmtree(tmp_path / "Tennis")
    writer.write("Tennis", {REWARD: summary(1.0)}, 2)
    writer.close()
    assert [step for step, _ in points(tmp_path / "Tennis", REWARD)] == [2]
    assert "was removed while it was being written" in caplog.text
