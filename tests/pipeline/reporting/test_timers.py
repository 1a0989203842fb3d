"""Specifications of `timers.json`."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

from headrace.pipeline.reporting.statistics import StatisticsCollector
from headrace.pipeline.reporting.timers import GaugeWriter, Timers
from headrace.stages.activity import ACTING, LEARNING, STEPPING


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_timers_nest_as_they_ran_and_add_up():
    clock = Clock()
    timers = Timers(clock)
    for _ in range(2):
        with timers.timer("advance"):
            clock.now += 1
            with timers.timer("update"):
                clock.now += 3
    clock.now += 2
    root = timers.as_dict()
    assert (root["name"], root["total"], root["count"], root["self"]) == ("root", 10, 1, 2)
    advance = root["children"]["advance"]
    assert (advance["total"], advance["count"], advance["self"]) == (8, 2, 2)
    assert advance["children"] == {"update": {"total": 6, "count": 2, "self": 6}}


def test_a_timer_whose_body_fails_counts_and_ends():
    clock = Clock()
    timers = Timers(clock)

    def fail():
        with timers.timer("a"):
            clock.now += 1
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with timers.timer("b"):
        clock.now += 1
    assert timers.as_dict()["children"].keys() == {"a", "b"}
    assert timers.as_dict()["children"]["a"]["total"] == 1


def test_the_work_of_other_hosts_stands_where_ml_agents_has_it():
    clock = Clock()
    timers = Timers(clock)
    for _ in range(2):
        timers.add_work({ACTING: (1.0, 10), STEPPING: (3.0, 10), LEARNING: (5.0, 2)})
    clock.now += 9
    loop = timers.as_dict()["children"]["TrainerController.start_learning"]["children"]["TrainerController.advance"]
    assert (loop["total"], loop["count"]) == (9, 24)
    tree = loop["children"]
    assert {name: (node["total"], node["count"]) for name, node in tree.items()} == {
        "env_step": (8, 20),
        "trainer_advance": (10, 4),
    }
    assert tree["env_step"]["children"]["SubprocessEnvManager._take_step"] == {
        "total": 2,
        "count": 20,
        "self": 2,
        "is_parallel": True,
    }
    update = tree["trainer_advance"]["children"]["_update_policy"]
    assert (update["total"], update["count"]) == (10, 4)
    step = tree["env_step"]["children"]["workers"]["children"]["worker_root"]["children"]["UnityEnvironment.step"]
    assert (step["total"], step["count"]) == (6, 20)


def test_the_metadata_has_the_versions_that_ml_agents_writes():
    written = Timers().as_dict()["metadata"]
    of_ml_agents = {"mlagents_version", "mlagents_envs_version", "pytorch_version", "numpy_version"}
    assert of_ml_agents | {"communication_protocol_version"} <= written.keys()
    assert written["communication_protocol_version"] == "1.5.0"
    assert written["numpy_version"] == np.__version__


async def test_tasks_that_take_turns_do_not_nest_in_one_another():
    clock = Clock()
    timers = Timers(clock)
    turns = [asyncio.Event() for _ in range(2)]

    async def first() -> None:
        with timers.timer("first"):
            turns[0].set()
            await turns[1].wait()
            with timers.timer("inner"):
                clock.now += 1

    async def second() -> None:
        await turns[0].wait()
        with timers.timer("second"):
            turns[1].set()
            clock.now += 5

    async with asyncio.TaskGroup() as group:
        group.create_task(first())
        group.create_task(second())
    children = timers.as_dict()["children"]
    assert children.keys() == {"first", "second"}
    assert children["first"]["children"]["inner"]["total"] == 1
    assert "children" not in children["second"]


def test_two_sets_of_timers_are_independent():
    outer, inner = Timers(Clock()), Timers(Clock())
    with outer.timer("a"), inner.timer("b"):
        pass
    assert outer.as_dict()["children"]["a"].keys() == {"total", "count", "self"}
    assert inner.as_dict()["children"].keys() == {"b"}


def test_gauges_have_ml_agents_names_and_keep_their_extremes():
    timers = Timers(Clock())
    writer = GaugeWriter(timers)
    collector = StatisticsCollector()
    for values in ([1.0, 2.0], [4.0, 6.0], [3.0]):
        collector.extend("Tennis", "Environment/Cumulative Reward", values)
        writer.write("Tennis", collector.summaries("Tennis"), 1000)
    assert timers.as_dict()["gauges"] == {
        "Tennis.Environment.CumulativeReward.mean": {"value": 3.0, "min": 1.5, "max": 5.0, "count": 3},
        "Tennis.Environment.CumulativeReward.sum": {"value": 3.0, "min": 3.0, "max": 10.0, "count": 3},
    }


def test_the_gauges_of_a_most_recent_value_are_that_value():
    timers = Timers(Clock())
    collector = StatisticsCollector()
    for lesson in (1.0, 2.0):
        collector.add("Tennis", "Environment/Lesson Number/height", lesson, "last")
    GaugeWriter(timers).write("Tennis", collector.summaries("Tennis"), 1000)
    values = {name: gauge["value"] for name, gauge in timers.as_dict()["gauges"].items()}
    assert values == {
        "Tennis.Environment.LessonNumber.height.mean": 2.0,
        "Tennis.Environment.LessonNumber.height.sum": 2.0,
    }


def test_a_gauge_that_is_no_finite_number_is_left_out_of_the_file(tmp_path):
    timers = Timers(Clock())
    timers.set_gauge("too large", float("inf"))
    timers.write(tmp_path / "timers.json")
    assert json.loads((tmp_path / "timers.json").read_bytes())["gauges"] == {}


def test_the_file_can_be_written_at_every_checkpoint(tmp_path):
    clock = Clock()
    wall = Clock()
    timers = Timers(clock, wall)
    path = tmp_path / "timers.json"
    for total in (10.0, 20.0):
        clock.now = wall.now = 100 + total
        timers.write(path)
        content = json.loads(path.read_bytes())
        assert content["total"] == total
        assert content["metadata"]["end_time_seconds"] == str(int(wall.now))
    assert content["metadata"]["start_time_seconds"] == "100"
    assert {"timer_format_version", "python_version", "command_line_arguments"} <= content["metadata"].keys()
    assert [entry.name for entry in tmp_path.iterdir()] == ["timers.json"]
