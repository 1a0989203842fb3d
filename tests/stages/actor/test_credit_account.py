"""An actor's account: it asks once for the same behaviours, and tells by which versions its steps are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.stages.actor.credits import CreditAccount, CreditGate


class World:
    """An environment and a processor in few numbers: behaviours A, which learns, and B, whose turn it is not."""

    def __init__(self) -> None:
        self.specs = {"A?team=0": None, "A?team=1": None, "B": None}
        self.mappings = SimpleNamespace(learns=lambda name: name == "A", newest_version=lambda name: 3)
        self.held, self.source = 0, 0

    def emitted(self, name: str) -> int:
        return 10

    def pending(self, name: str) -> int:
        return self.held

    def open_agents(self, name: str) -> int:
        return 1

    def renew(self, source: int) -> None:
        self.source = source


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def requests() -> list[tuple[int, Mapping[str, int], Sequence[str], Sequence[str]]]:
    return []


@pytest.fixture
def account(world: Any, requests: list[Any]) -> CreditAccount:
    gate = CreditGate(lambda *request: requests.append(request))
    made = CreditAccount(world, world, gate)
    made.adopt_behaviors()
    return made


def test_only_behaviours_that_learn_need_credits(account, requests):
    assert account.deciding() == ("A", "B")
    assert account.missing(account.deciding())
    account.ask()
    assert [wanted for _, _, wanted, _ in requests] == [["A"]]
    assert not account.missing(("B",))


def test_the_same_is_asked_for_once_until_it_is_asked_anew(account, requests):
    account.missing(account.deciding())
    account.ask()
    account.ask()
    assert len(requests) == 1
    account.ask_anew()
    assert len(requests) == 2
    account.give_back()  # nobody learns any more: that is another request
    assert len(requests) == 3


def test_steps_are_noted_with_the_version_that_made_them_and_begin_anew_with_another_source(account, world):
    world.held = 5
    account.note_versions(account.newest_versions(), {})
    assert account.acting == {"A": (15, 3), "B": (15, 3)}
    world.held = 7
    account.note_versions(account.newest_versions(), {})  # no newer one
    assert account.acting["A"] == (15, 3)
    account.renew(4)
    assert (world.source, account.acting) == (4, {})
