"""An actor's account of the steps that its policies' versions made."""

from __future__ import annotations

from typing import Any

from headrace.stages.actor.credits import CreditAccount, CreditGate


class World:
    """An environment and a processor with one behaviour, 10 steps emitted and some pending."""

    specs = {"A?team=0": None, "A?team=1": None}
    held = source = 0

    def emitted(self, name: str) -> int:
        return 10

    def used(self, name: str) -> int:
        return 10 + self.held

    def begin_source(self, source: int) -> None:
        self.source = source


def test_steps_are_counted_by_version_and_again_from_zero_for_another_source():
    world: Any = World()
    account = CreditAccount(world, world, CreditGate(lambda *request: None))
    account.adopt_behaviors()
    world.held = 5
    account.note_versions({"A": 3})
    world.held = 7
    account.note_versions({"A": 3})
    assert account.acting == {"A": (15, 3)}

    account.begin_source(4)
    assert (world.source, account.acting) == (4, {})
