"""Shares of time from what hosts tell: whole updates, by the hosts' clocks, however the reports come."""

from __future__ import annotations

import pytest

from headrace.pipeline.reporting.time_shares import TimeShares, find_bottleneck
from headrace.stages.activity import Timings


class Run:
    """One actor and one learner in processes of their own, which tell once a second by their own clocks."""

    def __init__(self):
        self.now = 0.0
        self.shares = TimeShares(lambda: self.now)

    def pass_second(self, actor=None, learner=None):
        self.now += 1.0
        self.shares.add("main", {}, 1.0)
        if actor is not None:
            self.shares.add("actor-0", {"working/actor": (1.0, 0), **actor}, 1.0, "actor", "", "2")
        if learner is not None:
            span_s, told = learner
            self.shares.add("learner-Ball", told, span_s, "learner", "Ball", "3")

    def cycle(self):
        """Two seconds of collecting, then an update of 18 s, in which the learner tells nothing."""
        for _ in range(2):
            self.pass_second({"stepping": (0.9, 9)}, (1.0, {}))
        waiting = dict.fromkeys(("resting", "waiting", "waiting/Ball"), (1.0, 0))
        for second in range(18):
            self.pass_second(
                waiting, (18.0, {"working/trainer": (18.0, 1), "learning": (18.0, 1)}) if second == 17 else None
            )
            yield find_bottleneck(self.shares.numbers())


def test_the_learner_is_named_all_the_time_from_its_first_update_on_with_the_same_numbers():
    run = Run()
    first = [*run.cycle()]
    assert first[:4] == [None] * 4, "before it nothing is said"
    assert all(found.text.startswith("Learner: ") for found in first[7:]), "unless it takes long"
    texts = {found.text[:110] for _ in range(3) for found in run.cycle()}
    assert texts == {
        "Learner: 90 % busy; actors wait 90 % of the time for it. An update takes 18 s, collecting 2 s. More `learners."
    }


def test_a_learner_that_does_not_tell_for_longer_than_ever_is_at_work():
    run = Run()
    for _ in range(30):  # quick updates
        run.pass_second({"stepping": (0.9, 9)}, (1.0, {"working/trainer": (0.1, 1), "learning": (0.1, 1)}))
    assert find_bottleneck(run.shares.numbers()).host == "actors"
    waiting = dict.fromkeys(("resting", "waiting", "waiting/Ball"), (1.0, 0))
    for _ in range(20):
        run.pass_second(waiting)
    found = find_bottleneck(run.shares.numbers())
    assert (found.host, found.busy) == ("learner-Ball", 1.0)
    run.shares.ended("learner-Ball")
    assert find_bottleneck(run.shares.numbers()) is None


def test_learners_in_one_process_are_not_at_work_because_one_of_them_holds_it_but_may_hold_the_run_up_together():
    run = Run()
    waiting = dict.fromkeys(("resting", "waiting", "waiting/A"), (0.9, 0))
    for _ in range(20):
        for name in "ABCDEF":
            told = {"working/trainer": (0.15, 1), "learning": (0.15, 1)}
            run.shares.add(f"learner-{name}", told, 1.0, "learner", name, "3")
        run.pass_second({**waiting, "stepping": (0.1, 9)})
    found = find_bottleneck(run.shares.numbers())
    assert (found.host, found.stage, round(found.busy, 6)) == ("learners", "trainer", 0.9)
    assert found.text.startswith("Learners in one event loop: 90 % busy; actors wait 90 % of the time for it.")
    for _ in range(30):
        run.pass_second({"stepping": (1.0, 9)})
    assert run.shares.numbers()["Busy/learner-A/trainer"] < 0.2


@pytest.mark.parametrize("name", ["a/b", "two words", "x-y"])
def test_names_of_behaviours_are_found_whatever_they_are(name):
    numbers = {f"Busy/learner-{name}/trainer": 0.9, "Busy/actors": 0.1, f"Wait/policy {name}": 0.8}
    found = find_bottleneck(numbers)
    assert (found.host, found.stage, found.behavior, found.wait) == (f"learner-{name}", "trainer", name, 0.8)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_epoch": 3}, "Fewer epochs (`num_epoch`), more `learners.threads` or `learners.replicas` would help."),
        ({"steps_per_update": 1.0}, "A higher `steps_per_update`, more `learners.threads` or"),
        ({"unroll_length": 20}, "it. More `learners.threads` or `learners.replicas` would help."),
    ],
)
def test_the_advice_for_a_busy_learner_follows_from_its_trainer_s_settings(settings, words):
    numbers = {"Busy/learner-A/trainer": 0.9, "Busy/learner-B/trainer": 0.1, "Busy/actors": 0.1, "Wait/policy A": 0.8}
    blocks = {"A": {"hyperparameters": settings}, "B": {"hyperparameters": {"num_epoch": 1, "steps_per_update": 1}}}
    assert words in find_bottleneck(numbers, blocks).text


def test_a_main_that_is_busy_is_named_unless_a_stage_of_it_is_slow():
    run = Run()

    def told_of_main(**work):
        run.shares = TimeShares(lambda: run.now)
        for _ in range(30):
            run.now += 1.0
            run.shares.add("main", {kind.replace("_", "/"): (seconds, 1) for kind, seconds in work.items()}, 1.0)
            run.shares.add(
                "actor-0",
                {"working/actor": (1.0, 0), "stepping": (0.1, 9), "resting": (0.6, 1), "waiting": (0.6, 1)},
                1.0,
                "actor",
                "",
                "2",
            )
            run.shares.add(
                "learner-Ball", {"working/trainer": (0.1, 1), "learning": (0.1, 1)}, 1.0, "learner", "Ball", "3"
            )
        return find_bottleneck(run.shares.numbers())

    found = told_of_main(computing=0.9, working_ghost=0.3)
    assert (found.host, found.stage, round(found.busy, 6)) == ("main", "", 0.9)
    assert found.text == (
        "Main: 90 % busy; actors wait 60 % of the time for it. Fewer `pipeline.hosts.actors.replicas`, with more "
        "`num_envs` each, would help."
    )
    assert told_of_main(computing=0.9, working_ghost=0.8).stage == "ghost"
    assert told_of_main(computing=0.1, working_slow=0.8).stage == "slow", "it waits for something, without the core"
    run.shares.add("evaluation", {}, 1.0, "evaluation", "", "main")
    assert "Busy/main" not in run.shares.numbers(), "what others do in its event loop is theirs"


def test_a_paused_run_has_no_bottleneck():
    run = Run()
    for second in range(30):
        learned = {"working/trainer": (0.9, 1), "learning": (0.9, 1)} if second < 15 else {}
        run.pass_second({"resting": (1.0, 0)} if second >= 15 else {"stepping": (1.0, 9)}, (1.0, learned))
    assert find_bottleneck(run.shares.numbers()) is None


def test_timings_in_progress_can_be_drained_and_are_counted_once():
    clock = [0.0]
    timings = Timings(lambda: clock[0])
    with timings.lasting("resting", "waiting"):
        clock[0] = 3.0
        assert timings.drain() == ({"resting": (3.0, 0), "waiting": (3.0, 0)}, 3.0)
        clock[0] = 5.0
    assert timings.drain() == ({"resting": (2.0, 1), "waiting": (2.0, 1)}, 2.0)
    assert timings.drain() == ({}, 0.0)
