"""Learners compute with the threads that the YAML names, or that cores are left over for."""

import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from headrace.config import RunConfig
from headrace.pipeline.roles.learner import thread_choice
from headrace.pipeline.roles.sizes import cores_left_for, outnumber_cores
from headrace.stages.trainer.thread_choice import ROUNDS

LOG = logging.getLogger("test")


def config_of(behaviors=("B",), **sections):
    hosts = sections.pop("hosts", {})
    sections["pipeline"] = {"hosts": hosts, **sections.pop("pipeline", {})}
    plain = {"behaviors": {name: {} for name in behaviors}, "environment": {"kind": "builtin", "id": "Volley"}}
    return RunConfig.from_plain({**plain, **sections})


def a_learner(threads_sleep=False, use_threads=torch.set_num_threads) -> Any:
    """What is asked of a trainer."""
    return SimpleNamespace(threads_sleep=threads_sleep, use_threads=use_threads)


@pytest.fixture
def cores(monkeypatch):
    def there_are(count):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(count), raising=False)
        monkeypatch.setattr("headrace.pipeline.common.process.CONTROL_GROUPS", Path("nowhere"))

    return there_are


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("count", "behaviors", "hosts", "left"),
    [
        (1, "B", {}, 1),
        (2, "B", {}, 1),
        (8, "B", {}, 7),
        (8, "B", {"actors": {"replicas": 4}}, 4),
        (8, "B", {"actors": {"replicas": 16}}, 1),
        (9, "ABCD", {}, 2),
        (9, "ABCD", {"learners": {"processes": 2}}, 4),
        (8, "B", {"actors": {"kind": "ray"}}, 8),
    ],
)
def test_cores_that_actors_and_other_learners_need_are_left_to_them(count, behaviors, hosts, left, cores):
    cores(count)
    assert cores_left_for(config_of(behaviors, hosts=hosts)) == left


@pytest.mark.parametrize(
    ("count", "hosts", "outnumbered"),
    [
        (2, {}, False),
        (2, {"actors": {"replicas": 2}}, True),
        (3, {"actors": {"replicas": 2}}, False),
        (1, {"actors": {"kind": "ray"}}, False),
    ],
)
def test_actors_and_learners_may_outnumber_the_cores(count, hosts, outnumbered, cores):
    cores(count)
    assert outnumber_cores(config_of("B", hosts=hosts)) == outnumbered


@pytest.mark.parametrize(
    ("sections", "device"),
    [
        ({"pipeline": {"deterministic": True}}, "cpu"),
        ({"record": {}}, "cpu"),
        ({"hosts": {"learners": {"replicas": 2}}}, "cpu"),
        ({"hosts": {"learners": {"kind": "inline"}}}, "cpu"),
        ({}, "cuda"),
    ],
)
def test_nothing_is_tried_if_the_run_must_be_reproducible_or_threads_do_not_compute(sections, device, cores):
    cores(16)
    assert thread_choice(config_of(**sections), "B", device, LOG, a_learner()) is None


def test_a_number_in_the_yaml_is_used_as_it_is(cores):
    cores(1)
    choice = thread_choice(config_of(hosts={"learners": {"threads": 2}}), "B", "cpu", LOG, a_learner())
    choice.begin()
    assert torch.get_num_threads() == 2
    assert choice.state is None


def test_the_chosen_thread_count_is_logged_with_the_time_per_update_of_each_count(cores, caplog):
    cores(3)
    choice = thread_choice(config_of(), "B", "cpu", LOG, a_learner())
    with caplog.at_level(logging.INFO):
        for _ in range(1 + 2 * ROUNDS):
            choice.begin()
            choice.took(0.2 / torch.get_num_threads(), 100)
    assert [record.getMessage() for record in caplog.records] == [
        "B: learners.threads is 2 (auto); time per update by number of threads: 1: 0.2 s, 2: 0.1 s."
    ]
    assert choice.state == 2


def test_a_trainer_whose_second_thread_sleeps_tries_the_core_of_an_actor(cores):
    cores(2)
    tried = []
    learner = a_learner(threads_sleep=True, use_threads=tried.append)
    choice = thread_choice(config_of(), "B", "cpu", LOG, learner)
    for _ in range(3):
        choice.begin()
        choice.took(0.1, 100)
    assert tried == [1, 1, 2]
    assert thread_choice(config_of(), "B", "cpu", LOG, a_learner()) is None
