"""Curves stay within their space, go back with their run, and come back from event files."""

from __future__ import annotations

from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter

from headrace.pipeline.reporting.history import MOST_POINTS, Curve, History, HistoryWriter, Mark, read_events
from headrace.pipeline.reporting.statistics import Summary
from headrace.pipeline.reporting.writers import TensorboardWriter


def of(value: float) -> Summary:
    return Summary("mean", value, value, 0.0, 1, value)


def test_a_long_curve_keeps_its_ends_its_mean_and_its_bound():
    curve = Curve()
    for step in range(100_000):
        curve.add((step, float(step), float(step % 2)))
    plain = curve.plain()
    assert MOST_POINTS / 2 <= len(plain["steps"]) <= MOST_POINTS + 1
    assert (plain["steps"][0] < 1000, plain["steps"][-1]) == (True, 99_999)
    assert set(plain["values"]) == {0.5}
    assert plain["steps"] == sorted(plain["steps"])


def test_a_lost_learners_points_are_forgotten():
    history = History()
    writer = HistoryWriter(history, resumed=False, wall_clock=lambda: 1.0)
    for step in (10, 20, 30):
        writer.write("Ball", {"reward": of(step), "Is Training": of(1.0)}, step)
    writer.rewind("Ball", 15)
    writer.write("Ball", {"reward": of(-1.0)}, 20)
    assert history.plain() == {"Ball": {"reward": {"steps": [10, 20], "times": [1.0, 1.0], "values": [10, -1.0]}}}
    assert history.newest() == {"Ball": {"reward": -1.0}}


def test_a_resumed_run_has_the_curves_from_its_start(tmp_path):
    first = TensorboardWriter(tmp_path, resume=False)
    for step in (10, 20, 30):
        first.write("Ball/1", {"reward": of(step)}, step)
    first.close()
    second = TensorboardWriter(tmp_path, resume=True)
    second.write("Ball/1", {"reward": of(-20.0)}, 20)
    second.close()
    history = History()
    read_events(tmp_path, ["Ball/1"], history)
    assert history.plain()["Ball/1"]["reward"]["steps"] == [10, 20]
    assert history.take_fresh() == ([], [])
    writer = HistoryWriter(history, resumed=True)
    writer.write("Ball/1", {"reward": of(7.0)}, 20)
    assert history.plain()["Ball/1"]["reward"]["values"] == [10, 7.0]


def test_marks_lessons_and_restarts_are_restored_from_event_files(tmp_path):
    lesson = "Environment/Lesson Number/height"
    first = TensorboardWriter(tmp_path, resume=False)
    for step, number in ((10, 0.0), (20, 0.0), (30, 1.0)):
        first.write("Ball", {lesson: of(number)}, step)
    first.mark("Ball", 25, "set", "beta = 0.1")
    first.mark("Ball", 40, "checkpoint", "checkpoint 7")
    first.close()
    second = TensorboardWriter(tmp_path, resume=True)
    second.rewind("Ball", 30)
    second.close()
    history = History()
    read_events(tmp_path, ["Ball"], history)
    assert [(mark.step, mark.kind, mark.text) for mark in history.marks()["Ball"]] == [
        (30, "lesson", "height: lesson 1"),
        (25, "set", "beta = 0.1"),
        (30, "restart", "restart"),  # and the checkpoint behind it is forgotten
    ]


def test_a_resumed_run_is_marked_once():
    history = History()
    writer = HistoryWriter(history, resumed=True, wall_clock=lambda: 5.0)
    writer.rewind("Ball", 15)
    writer.mark("Ball", 16, "set", "beta = 1")
    writer.write("Ball", {"reward": of(1.0)}, 20)
    assert history.marks() == {"Ball": [Mark(15, 5.0, "restart", "restart"), Mark(16, 5.0, "set", "beta = 1")]}
    assert history.take_fresh()[1] == [("Ball", mark) for mark in history.marks()["Ball"]]


def event_file(path: Path, *events: tuple[int, float, str]) -> None:
    """Write an event file: step, time, and the scalar's tag, "restart" or "" for the file's version."""
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        for step, at, tag in events:
            event = Event(step=step, wall_time=at, **({} if tag else {"file_version": "brain.Event:2"}))
            if tag == "restart":
                event.session_log.status = 1
            elif tag:
                event.summary.value.add(tag=tag, simple_value=1.0)
            RecordWriter(file).write(event.SerializeToString())


def test_the_time_axis_leaves_out_the_pause_before_a_resume(tmp_path):
    """The run takes 25 s, pauses, and takes another 12 s; the steps that it repeats have taken their time."""
    ball, all_ = tmp_path / "Ball", tmp_path / "Pipeline"
    event_file(ball / "events.out.tfevents.1000.a.1.0", (0, 1000, ""), (10, 1010, "reward"), (20, 1025, "reward"))
    event_file(all_ / "events.out.tfevents.1000.a.1.1", (0, 1001, ""), (10, 1011, "busy"))
    event_file(ball / "events.out.tfevents.5000.a.2.0", (0, 5000, ""), (20, 5007, "restart"), (20, 5010, "reward"))
    event_file(all_ / "events.out.tfevents.5000.a.2.1", (0, 5002, ""), (11, 5007, "restart"), (20, 5012, "busy"))
    history = History()
    read_events(tmp_path, ["Ball"], history)
    plain = history.plain()
    assert plain["Ball"]["reward"] == {"steps": [10, 20], "times": [10, 35], "values": [1, 1]}
    assert plain["Pipeline"]["busy"]["times"] == [11, 37]
    assert [mark.at for mark in history.marks()["Ball"]] == [32]
    history.start(9000.0)  # this process resumes the run, and says so again
    history.start(9000.0)
    HistoryWriter(history, resumed=True, wall_clock=lambda: 9004.0).write("Ball", {"reward": of(1.0)}, 30)
    assert history.plain()["Ball"]["reward"]["times"] == [10, 35, 41]


def test_a_damaged_event_file_counts_up_to_the_damage(tmp_path):
    writer = TensorboardWriter(tmp_path, resume=False)
    for step in (10, 20):
        writer.write("Ball", {"reward": of(step)}, step)
    writer.close()
    (path,) = tmp_path.glob("*/events*")
    path.write_bytes(path.read_bytes()[:-3])
    (tmp_path / "Ball" / "events.out.tfevents.1.x").write_bytes(b"\xff" * 100)
    history = History()
    read_events(tmp_path, [], history)
    assert history.plain()["Ball"]["reward"]["steps"] == [10]
