"""The table of faults × places × moments: which cells there are, and what each has to come to."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

PLACES = ("environment", "game", "ActorStage", "MainStage", "trainer", "publisher", "writer")
"""`game` is a program that the environment starts: a child of a child."""
MOMENTS = ("start", "first item", "mid-run", "checkpoint", "end")
EXITS = ("sys.exit(0)", "SystemExit", "KeyboardInterrupt", "CancelledError", "GeneratorExit")
DIES = {"os._exit(0)": 0, "os._exit(3)": 3, "kill -9": -9}
"""With the status that the process then has."""
HANGS = ("SIGSTOP", "hang in Python", "hang in C")
OUTPUTS = ("NaN output", "wrong output")
REPLACED = "folder replaced"
"""The run's folder is moved, and another one made in its place."""
CHANGED = "process changed"
"""What its whole process shares is changed: `foreign_env.py` says what."""
ASKED = ("terminal closed", "two signals")
"""Main is asked to end, in the middle of what the place does."""
FAULTS = ("raise", *EXITS, *DIES, *HANGS, "await for ever", "slow", *OUTPUTS, REPLACED, *ASKED, CHANGED)
ON_RAY = ("environment", "game", "ActorStage", "MainStage", "trainer")
"""The places that Ray's hosts run, and one in main, which must end them."""
IN_MAIN = ("MainStage", "publisher", "writer")
OF_RAY = ("raylet", "gcs_server")
"""Processes of a Ray of the run's own; there is one fault: they are killed."""


@dataclass(frozen=True)
class Cell:
    """One fault, in one place, at one moment."""

    place: str
    moment: str
    fault: str

    def __str__(self) -> str:
        return f"{self.place}|{self.moment}|{self.fault}"


def cells(kind: str = "process") -> Iterator[Cell]:
    """All that make sense with hosts of a kind; on Ray, whose cells take 20 s each, every place with every fault once."""
    if kind != "ray":
        yield from (
            cell for parts in itertools.product(PLACES, MOMENTS, FAULTS) if nonsense(cell := Cell(*parts)) is None
        )
        return
    for (row, place), (column, fault) in itertools.product(enumerate(ON_RAY), enumerate(FAULTS)):
        first = row + column  # so that every moment meets every place, and all but a few faults
        moments = (MOMENTS[(first + turn) % len(MOMENTS)] for turn in range(len(MOMENTS)))
        sensible = [cell for moment in moments if nonsense(cell := Cell(place, moment, fault)) is None]
        if fault != CHANGED:  # whose own processes share
            yield from sensible[:1]
    yield from (Cell(place, moment, "kill -9") for place, moment in itertools.product(OF_RAY, MOMENTS))


def nonsense(cell: Cell) -> str | None:
    """Why a cell makes no sense; None if it does."""
    place, moment, fault = cell.place, cell.moment, cell.fault
    if place == "publisher" and moment == "start":
        return "it has no start of its own"
    if place in ("publisher", "writer") and moment == "checkpoint":
        return "nothing comes to it while the trainer saves"
    if place == "publisher" and fault == CHANGED:
        return "what forks there calls our publisher itself, in the child as well"
    if place == "game" and fault == CHANGED:
        return "another program's process is its own"
    if fault in (REPLACED, *ASKED) and place not in ("environment", "MainStage", "trainer"):
        return "it is the same wherever it happens"
    if fault == "await for ever" and place not in ("ActorStage", "MainStage"):
        return "nothing there is awaited"
    if fault == "await for ever" and moment == "checkpoint":
        return "state_dict is not awaited"
    if place == "game" and fault in ("SystemExit", "KeyboardInterrupt", "CancelledError", "GeneratorExit"):
        return "of another program only its end is seen, as with raise"
    if fault in OUTPUTS:
        return _nonsense_of_output(place, moment, fault)
    return None


def _nonsense_of_output(place: str, moment: str, fault: str) -> str | None:
    if place == "writer":
        return "nothing comes out of it"
    if moment == "start" or (moment == "end" and place in ("environment", "game")):
        return "nothing comes out of it then"
    if fault == "NaN output" and place in ("ActorStage", "MainStage") and moment in ("checkpoint", "end"):
        return "a state of its own may hold NaN, and behind the end nobody learns"
    if fault == "NaN output" and place == "trainer" and moment in ("checkpoint", "end"):
        return "nobody but the trainer can judge its state"
    return None


def statuses(cell: Cell, kind: str = "process") -> set[int]:
    """The exit statuses that a cell may come to with hosts of a kind."""
    place, moment, fault = cell.place, cell.moment, cell.fault
    if fault in ("slow", CHANGED, *ASKED):
        return {0}
    if fault == REPLACED:
        return {1}
    if place in IN_MAIN and fault in DIES:
        return {DIES[fault]}
    if place in IN_MAIN and fault == "SIGSTOP":
        return {0}  # Ctrl-Z and fg: the run goes on
    if place == "writer":
        return {1, 2} if moment == "start" else {0}  # training goes on without it
    if place in OF_RAY:
        return {0, 1}  # hosts that have met go on without it, and may come to the end before its loss shows
    if moment == "end" and place in ("environment", "game", "ActorStage"):
        return {0, 1}  # all is learned and saved; how its closing failed is said, and whoever hangs is left behind
    if place in ("environment", "game", "ActorStage", "trainer") and moment == "mid-run":
        return {0} if restarts(cell) else {1}
    return {1}


def restarts(cell: Cell) -> bool:
    """Whether an actor, its environment or a learner is started again after this fault, within limits."""
    place, fault = cell.place, cell.fault
    if place in ("ActorStage", "trainer"):
        return fault in (*DIES, *HANGS, "await for ever")
    return fault != "NaN output" and (place == "game" or fault not in EXITS)


def loses_main(cell: Cell) -> bool:
    """Whether main is gone without a word: nobody is left to say so. What stands is the checkpoint before."""
    return cell.place in IN_MAIN and cell.fault in DIES


def is_silent(cell: Cell) -> bool:
    """Whether nothing need be said."""
    stopped = cell.place in IN_MAIN and cell.fault == "SIGSTOP"
    return cell.fault in ("slow", CHANGED, *ASKED) or loses_main(cell) or stopped or cell.place in OF_RAY


def saves_what_was_learned(cell: Cell) -> bool:
    """Whether a failed run has a later checkpoint than the one before the fault: the trainer is sound, and main lives."""
    if cell.place == "trainer" or cell.place in OF_RAY or cell.fault == "NaN output":
        return False
    return cell.place not in IN_MAIN or cell.fault not in (*DIES, *HANGS, "await for ever")


def diagonal() -> set[Cell]:
    """Some cells: an exit and an endless wait.

    end_to_end has the others: test_crash.py hosts that die, test_leftovers.py games that hang,
    test_troubled_environments.py NaN, test_unasked_exits.py writers that exit.
    """
    return {
        Cell("MainStage", "first item", "sys.exit(0)"),
        Cell("ActorStage", "mid-run", "await for ever"),
    }
