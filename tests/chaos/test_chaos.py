"""Whatever fails, whatever way, wherever, whenever: the run says so by name, ends, saves what it can and leaves nothing."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest
from chaos_run import BOUND_S, LAST_STEP, SILENCE, Outcome, observe
from chaos_table import (
    ASKED,
    OF_RAY,
    REPLACED,
    Cell,
    cells,
    diagonal,
    is_silent,
    loses_main,
    saves_what_was_learned,
    statuses,
)

from headrace.config.host_kinds import HOST_KINDS

BLAMED = {
    "environment": r"actor-0|stage actor|the environment's|environment factory",
    "game": r"actor-0|stage actor|the environment's|environment factory",
    "ActorStage": r"ActorStage|actor-0",
    "MainStage": r"MainStage",
    "trainer": r"stage trainer|learner-CartPole|misbehaving_trainer:Learns|policy version",
    "publisher": r"publisher|policy version",
    "writer": r"misbehaving:Writer",
    **dict.fromkeys(OF_RAY, r"Ray|actor-0|learner-CartPole"),
}
"""What the message names."""


def parameters():
    """Cells by the kind of hosts; all that are not quick are slow."""
    quick = diagonal()
    for kind in SILENCE:
        for cell in cells(kind):
            marks = () if cell in quick and kind == "process" else pytest.mark.slow
            yield pytest.param(kind, cell, id=f"{kind}|{cell}", marks=marks)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "cell"), [*parameters()])
def test_a_fault_is_named_and_leaves_no_process_and_no_damage(kind: str, cell: Cell, tmp_path):
    if HOST_KINDS[kind].on_ray and find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    check(kind, cell, observe(cell, tmp_path, kind))


def check(kind: str, cell: Cell, found: Outcome) -> None:
    """It ends as the table says, and says why."""
    print(found.output)
    assert found.status is not None, f"it did not end within {BOUND_S} s"
    assert found.happened is not None, "the fault has not happened"
    assert found.status in statuses(cell, kind)
    assert found.left == [], "processes stayed behind"
    assert_told(cell, found)
    assert found.number >= found.happened, "a checkpoint is lost"
    if cell.fault in ASKED:
        assert found.number > found.happened or cell.moment not in ("mid-run", "checkpoint"), "nothing was saved"
    elif found.status == 0 and not loses_main(cell):
        assert found.step >= LAST_STEP
    if found.status == 1 and found.happened >= 0 and saves_what_was_learned(cell) and found.step < LAST_STEP:
        assert found.number > found.happened, "what was learned is not saved"


def assert_told(cell: Cell, found: Outcome) -> None:
    """It is said who is to blame, once, and as people read it."""
    others = {"NaN output": r"not finite|\bnan\b", REPLACED: "no longer the folder that this run has locked"}
    blamed = others.get(cell.fault, BLAMED[cell.place])
    if cell.place != "game":  # whose own words are its own
        assert "Traceback (most" not in found.output  # the word alone may come from a stack that a warning shows
    if found.status == 1:
        (told,) = re.findall("the run has failed: (.*)", found.output)
        assert re.search(blamed, told), told
    if not is_silent(cell):
        told = "\n".join(re.findall(r"(?:\[WARNING\]|\[ERROR\]|run-pipeline:).*", found.output))
        assert re.search(blamed, told), "nobody is blamed"
