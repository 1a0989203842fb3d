from typing import NamedTuple

import pytest
import torch
from recorded_graphs import RecordedGraphs
from torch import Tensor

from headrace.config import BehaviorSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.trainer.fast.accelerate import why_not_captured
from headrace.stages.trainer.fast.cuda_graphs import MOST_FORMS, WARM_UP, CapturedStep, copied
from headrace.stages.trainer.protocol import Replicas, TrainerContext


class Rows(NamedTuple):
    one: Tensor
    other: Tensor | None
    width: int


class Sum(NamedTuple):
    total: Tensor


class Counter:
    """A step that adds its rows to a weight; counts the calls of Python."""

    def __init__(self, graphs):
        self.weight = torch.zeros(2)
        self.calls = 0
        self.told: list[str] = []
        self.step = CapturedStep(self._add, graphs, self.told.append)

    def _add(self, rows):
        self.calls += 1
        self.weight += rows.one.sum(dim=0) * rows.width
        if rows.other is not None:
            self.weight -= rows.other
        return Sum(self.weight.sum())


def rows(count, value, other=None, width=1):
    return Rows(torch.full((count, 2), float(value)), None if other is None else torch.full((2,), float(other)), width)


@pytest.mark.lengthy
def test_the_first_steps_count_and_the_others_are_replayed_with_their_own_inputs():
    graphs = RecordedGraphs()
    counter = Counter(graphs)
    for value in range(10):
        total = counter.step(rows(3, value)).total.item()
        assert total == 2 * 3 * sum(range(value + 1))
    assert (graphs.warm_ups, graphs.captures, graphs.replays) == (WARM_UP, 1, 10 - WARM_UP)
    assert counter.calls == WARM_UP + 1


def test_an_input_may_be_freed_or_overwritten_after_the_call():
    counter = Counter(RecordedGraphs())
    given = rows(2, 1.0)
    for value in range(10):
        given.one.fill_(value)
        counter.step(given)
    assert counter.weight.tolist() == [90.0, 90.0]


def test_results_are_overwritten_by_the_next_call_and_copies_are_not():
    counter = Counter(RecordedGraphs())
    for _ in range(5):
        found = counter.step(rows(1, 1))
    kept = copied(found)
    later = counter.step(rows(1, 1))
    assert later.total is found.total
    assert (kept.total.item(), found.total.item()) == (10.0, 12.0)
    assert isinstance(kept, Sum)


@pytest.mark.parametrize(
    "changed", [rows(2, 1.0), rows(3, 1.0, other=1.0), rows(3, 1.0, width=2)], ids=["shape", "structure", "number"]
)
def test_another_shape_structure_or_number_is_another_graph_and_the_first_stays(changed):
    graphs, eager = RecordedGraphs(), Counter(RecordedGraphs(fails="it is to stay eager"))
    counter = Counter(graphs)
    for given in [rows(3, 1.0)] * 5 + [changed] * 5 + [rows(3, 2.0)] * 2:
        counter.step(given)
        eager.step(given)
    assert graphs.captures == 2
    assert graphs.warm_ups == 2 * WARM_UP
    assert torch.equal(counter.weight, eager.weight)


def test_too_many_forms_end_it_and_nothing_is_missed():
    graphs = RecordedGraphs()
    counter = Counter(graphs)
    for count in range(1, 2 * MOST_FORMS):
        counter.step(rows(count, 1.0))
    assert counter.told == [f"minibatches come in more than {MOST_FORMS} shapes"]
    assert counter.weight[0] == sum(range(1, 2 * MOST_FORMS))
    assert not graphs.captures


def test_a_capture_that_fails_leaves_nothing_half_done_and_is_not_tried_again():
    counter = Counter(RecordedGraphs(fails="out of memory"))
    for _ in range(10):
        counter.step(rows(1, 1.0))
    assert counter.told == ["out of memory"]
    assert counter.weight.tolist() == [10.0, 10.0]


def test_the_reason_is_reported_instead_of_the_error_at_the_end_of_a_capture():
    class Ending(RecordedGraphs):
        def capture(self, function):
            try:
                raise RuntimeError("operation would wait")
            finally:
                raise RuntimeError("the capture was invalidated")  # as torch.cuda.graph does

    counter = Counter(Ending())
    for _ in range(5):
        counter.step(rows(1, 1.0))
    assert counter.told == ["operation would wait"]


def test_a_mistake_in_the_step_itself_is_raised():
    def wrong(given):
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        CapturedStep(wrong, RecordedGraphs(), pytest.fail)(rows(1, 1.0))


class Pair(Replicas):
    size = 2

    def add_up(self, *tensors):
        raise AssertionError("nothing is learned here")


def context(device="cuda", network=None, **given):
    settings = BehaviorSettings.model_validate({"trainer_type": "ppo", "network_settings": network or {}})
    spec = BehaviorSpec("Ball", (ObservationSpec("o", (3,)),), ActionSpec(2))
    return TrainerContext("Ball", settings, spec, device=device, **given)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"replicas": Pair()}, "replicas exchange gradients"),
        ({"network": {"memory": {}}}, "minibatches of sequences differ"),
        ({"network": {"network": "mine:Network"}}, "a custom network"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_steps_are_not_captured_if_they_differ_or_wait(given, why):
    assert why in why_not_captured(context(**given))
