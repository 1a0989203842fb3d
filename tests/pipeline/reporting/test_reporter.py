import pytest

from headrace.pipeline.reporting.console import Progress
from headrace.pipeline.reporting.reporter import Reporter
from headrace.pipeline.reporting.statistics import PIPELINE, StatisticsCollector, StatisticsWriter
from headrace.stages.trainer.report import TrainerReport

REWARD = "Environment/Cumulative Reward"


class Points(StatisticsWriter):
    """A writer that keeps the reward of each summary by its step, and steps that it was taken back to."""

    def __init__(self):
        self.points, self.pipeline, self.rewound, self.updates = [], [], [], []

    def write(self, category, summaries, step):
        if category == PIPELINE:
            self.pipeline.append(step)
            self.newest = summaries
        else:
            self.points.append((step, summaries[REWARD].mean if REWARD in summaries else None))
            self.updates += [summaries["Pipeline/Updates"].last] if "Pipeline/Updates" in summaries else []

    def rewind(self, category, step):
        self.rewound.append((category, step))


class Run:
    """A reporter of one behaviour with a summary every 100 steps."""

    def __init__(self, step=0, max_steps=1000, training=True):
        self.collector, self.writer, self.now = StatisticsCollector(), Points(), 0.0
        self.reporter = Reporter(
            self.collector, [self.writer], Progress(enabled=False), training=training, clock=lambda: self.now
        )
        self.reporter.add_behavior("Ball", max_steps, 100, step, {})

    def reach(self, step, reward, version=1, at=0.0):
        self.collector.add("Ball", REWARD, reward)
        self.reporter.record_report(TrainerReport("Ball", step, version, False, reward, 1, {}, at=at))


def test_the_steps_since_the_last_summary_are_in_a_last_one_at_the_step_that_was_reached():
    run = Run()
    for step, reward in ((60, 1.0), (120, 2.0), (150, 5.0), (170, 7.0)):
        run.reach(step, reward)
    run.reporter.finish()
    assert run.writer.points == [(100, 1.5), (170, 6.0)]
    assert run.writer.pipeline == [100, 170]


def test_the_live_table_and_the_summaries_count_updates_and_not_versions():
    run = Run()
    run.reporter.record_report(TrainerReport("Ball", 100, 7, False, None, 0, {}, updates=3))
    assert run.reporter.snapshot().behaviors[0].updates == 3
    assert run.writer.updates == [3.0]


def test_behaviors_that_only_play_have_no_end_unless_all_of_them_do():
    def ends(training, **learns):
        run = Run(training=training)
        run.reporter = Reporter(run.collector, [], Progress(enabled=False), training=training)
        for name, each in learns.items():
            run.reporter.add_behavior(name, 1000, 100, 0, {}, each)
        return [progress.max_steps for progress in run.reporter.snapshot().behaviors]

    assert ends(True, Ball=True, Goalie=False) == [1000, None]
    assert ends(True, Ball=False, Goalie=False) == [1000, 1000]
    assert ends(False, Ball=True) == [None]


def test_statistics_after_the_last_report_are_written_at_the_end():
    run = Run()
    run.reach(60, 1.0)
    run.collector.add("Ball", REWARD, 3.0)
    run.reporter.finish()
    assert run.writer.points == [(60, 2.0)]


@pytest.mark.parametrize("steps", [(), (100,), (40, 100)])
def test_finish_writes_nothing_without_new_steps(steps):
    run = Run()
    for step in steps:
        run.reach(step, 1.0)
    run.reporter.finish()
    run.reporter.finish()
    assert len(run.writer.points) == bool(steps)


def test_rows_of_the_last_update_beyond_max_steps_do_not_get_a_separate_point():
    run = Run(max_steps=200)
    for step in (130, 208, 210):
        run.reach(step, 1.0)
    run.reporter.finish()
    assert [step for step, _ in run.writer.points] == [100, 200]


def test_a_report_beyond_several_summaries_makes_one():
    run = Run()
    for step, reward in ((350, 2.0), (410, 3.0), (500, 4.0)):
        run.reach(step, reward)
    assert run.writer.points == [(300, 2.0), (400, 3.0), (500, 4.0)]


def test_a_resumed_run_continues_after_the_last_summary():
    run = Run(step=170)
    assert run.writer.rewound == [("Ball", 170)], "a last summary of steps that are lost does not stay"
    run.reporter.finish()
    assert run.writer.points == []
    run.reach(230, 1.0)
    assert run.writer.points == [(200, 1.0)]
    run.reporter.finish()
    assert run.writer.points == [(200, 1.0)], "it was of all 230 steps"


def counts(at, items=0, put_wait=0.0, get_wait=0.0):
    """What an end of a queue has counted by a time of its host's clock."""
    fixed = {"name": "learn/Ball", "size": 0, "maxlen": 4, "high_water": 1}
    return {**fixed, "at": at, "items_in": items, "items_out": items, "put_wait_s": put_wait, "get_wait_s": get_wait}


def flow(*reports):
    """Rate, and the shares of producers and consumers that waited, after reports that reach main at once."""
    run = Run()
    for report in reports:
        run.reporter.add_statistics({}, [report], "actor-0")
    (queue,) = run.reporter.snapshot().queues
    return queue.items_per_s, queue.producers_wait, queue.consumers_wait


def test_rates_and_waits_of_a_queue_are_those_by_its_hosts_clock_however_its_reports_come():
    assert flow(counts(7.0)) == (0.0, 0.0, 0.0)
    seconds = [counts(100 + second, 2 * second, 0.25 * second, 0.5 * second) for second in range(5)]
    assert flow(*seconds) == (2.0, 0.25, 0.5)
    assert flow(*seconds, counts(104.001, 9, 1.001)) == (2.0, 0.25, 0.5)  # a summary was due
    assert flow(*seconds, counts(104.25, 9, 1.1), counts(105.0, 14, 1.5, 2.0)) == (6.0, 0.5, 0.0)
    assert flow(*seconds, counts(3.0), counts(4.0, 7)) == (7.0, 0.0, 0.0)  # another actor, on another machine
    assert flow(*seconds, counts(106.0, 3, 0.1, 0.2)) == (0.0, 0.0, 0.0)  # on this one: it counts from 0


def test_the_speed_of_a_behaviour_is_that_of_whole_updates_by_its_trainers_clock():
    """An update of 8 s behind 2 s of collecting: 100 steps in 10 s, at whatever times main hears of them."""
    run, seen = Run(max_steps=10**6), []
    for number in range(4):
        for version, at, steps in ((number, 1.0, 50), (number, 2.0, 100), (number + 1, 10.0, 100)):
            run.now += 1e-3 if number % 2 else 30.0
            run.reach(100 * number + steps, 1.0, version, 500.0 + 10 * number + at)
            seen.append(run.reporter.snapshot().behaviors[0].steps_per_s)
    assert seen[:2] == [0.0, 50.0], "before the first update: of what there is"
    assert seen[2] == 50 / 9, "the first report's steps began at an unknown time"
    assert seen[5:] == [10.0] * 7


def test_the_rates_of_stages_times_their_hosts_times_are_the_steps_that_they_counted():
    """Two actors whose reports reach main in bursts: 600 and 300 steps in 60 s each by their clocks."""
    run, total = Run(max_steps=10**6), 0.0
    for second in range(60):
        for actor, steps in (("actor-0", 10), ("actor-1", 5)):
            counted = {
                PIPELINE: {"Steps/actor": {"how": "sum", "count": 1, "sum": steps, "mean": 0, "m2": 0, "last": 0}}
            }
            run.reporter.add_statistics(counted, [], actor, 1.0)
        if second % 10 == 9:
            run.now += 1e-3
            run.reach(100 * (second // 10 + 1), 1.0)
            total += 10 * run.writer.newest["Steps per Second/actor"].value
    assert total == 900.0
