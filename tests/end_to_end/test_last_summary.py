"""The steps behind the last `summary_freq` are told of too, and once, however often a run goes on."""

from run_configs import INLINE, cartpole
from runs import run_here
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def points(folder, tag):
    return [point.step for point in EventAccumulator(str(folder / "CartPole")).Reload().Scalars(tag)]


def test_a_run_that_ends_between_two_summaries_reports_its_last_steps(tmp_path):
    ends = []
    for max_steps in (1500, 2500):
        plain = cartpole(behaviors__CartPole__max_steps=max_steps, **INLINE)
        result = run_here(plain, tmp_path, "run", resume=max_steps > 1500)
        ends.append(result.behaviors["CartPole"].step)
    assert points(result.folder, "Policy/Learning Rate") == [1000, ends[0], 2000, ends[1]]
