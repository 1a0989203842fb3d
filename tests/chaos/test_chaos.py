"""Whatever fails, whatever way, wherever, whenever: the run says so by name, ends, saves what it can and leaves nothing."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest
from chaos_run import BOUND_S, LAST_STEP, Outcome, observe
from chaos_table import (
    FAULTS,
    MOMENTS,
    PLACES,
    Cell,
    cells,
    diagonal,
    is_silent,
    loses_main,
    saves_what_was_learned,
    statuses,
)

BLAMED = {
    "environment": r"actor-0|stage actor|the environment's|environment factory",
    "game": r"actor-0|stage actor|the environment's|environment factory",
    "ActorStage": r"ActorStage|actor-0",
    "MainStage": r"MainStage",
    "trainer": r"stage trainer|learner-CartPole|misbehaving_trainer:Learns|policy version",
    "publisher": r"publisher|policy version",
    "writer": r"misbehaving:Writer",
}
"""What the message names."""


def parameters():
    quick = diagonal()
    for cell in cells():
        yield pytest.param(cell, id=str(cell), marks=() if cell in quick else pytest.mark.slow)


def test_the_quick_cells_have_each_fault_each_place_and_each_moment():
    quick = diagonal()
    assert quick <= {*cells()}
    assert {cell.fault for cell in quick} == {*FAULTS}
    assert {cell.place for cell in quick} == {*PLACES}
    assert {cell.moment for cell in quick} == {*MOMENTS}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("cell", [*parameters()])
def test_it_is_named_ends_the_run_within_a_bound_saves_what_it_can_and_leaves_nothing(cell: Cell, tmp_path):
    check(cell, observe(cell, tmp_path))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("cell", [pytest.param(cell, id=str(cell)) for cell in cells()])
def test_the_same_holds_of_hosts_on_ray(cell: Cell, tmp_path):
    check(cell, observe(cell, tmp_path, "ray"))


def check(cell: Cell, found: Outcome) -> None:
    """It ends as the table says, and says why."""
    print(found.output)
    assert found.status is not None, f"it did not end within {BOUND_S} s"
    assert found.happened is not None, "the fault has not happened"
    assert found.status in statuses(cell)
    assert found.left == [], "processes stayed behind"
    assert_told(cell, found)
    assert found.number >= found.happened, "a checkpoint is lost"
    if found.status == 0 and not loses_main(cell):
        assert found.step >= LAST_STEP
    if found.status == 1 and found.happened >= 0 and saves_what_was_learned(cell):
        assert found.number > found.happened, "what was learned is not saved"


def assert_told(cell: Cell, found: Outcome) -> None:
    """It is said who is to blame, once, and as people read it."""
    blamed = r"not finite|\bnan\b" if cell.fault == "NaN output" else BLAMED[cell.place]
    if cell.place != "game":  # whose own words are its own
        assert "Traceback" not in found.output
    if found.status == 1:
        (told,) = re.findall("the run has failed: (.*)", found.output)
        assert re.search(blamed, told), told
    if not is_silent(cell):
        told = "\n".join(re.findall(r"(?:\[WARNING\]|\[ERROR\]|run-pipeline:).*", found.output))
        assert re.search(blamed, told), "nobody is blamed"
