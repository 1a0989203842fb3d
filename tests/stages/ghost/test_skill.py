"""Ratings of games between more than two teams, by openskill, which may not be installed."""

from __future__ import annotations

import sys

import pytest

from stages.ghost.lineage import Record
from stages.ghost.skill import SkillRating, skill


def test_without_openskill_nothing_is_rated_and_that_is_said_once(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "openskill", None)
    monkeypatch.setitem(sys.modules, "openskill.models", None)
    rating, records = SkillRating(), [Record(1200.0) for _ in range(3)]
    for _ in range(3):
        assert not rating.rate([[record] for record in records], [1.0, 0.5, 0.0])
    assert [record.mu for record in records] == [None] * 3
    (said,) = caplog.messages
    assert "pip install 'headrace[league]'" in said


def test_the_skill_is_what_a_policy_can_at_least_be_trusted_with():
    assert skill(Record(1200.0)) is None
    assert skill(Record(1200.0, mu=30.0, sigma=2.0)) == 24.0


def test_whoever_wins_more_is_rated_higher():
    pytest.importorskip("openskill")
    rating, records = SkillRating(), [Record(1200.0) for _ in range(3)]
    for _ in range(20):
        assert rating.rate([[record] for record in records], [2.0, 1.0, 0.0])
    first, second, third = (skill(record) for record in records)
    assert first > second > third
    assert records[0].sigma < 25 / 3, "and one is the surer of it the more games there were"


def test_a_policy_that_played_for_two_teams_gets_the_mean_of_both_ratings():
    openskill = pytest.importorskip("openskill.models")
    twice, once = Record(1200.0), Record(1200.0)
    SkillRating().rate([[twice], [once], [twice]], [2.0, 1.0, 0.0])
    model = openskill.PlackettLuce()
    (first,), (second,), (third,) = model.rate([[model.rating()] for _ in range(3)], scores=[2.0, 1.0, 0.0])
    assert twice.mu == pytest.approx((first.mu + third.mu) / 2)
    assert once.mu == pytest.approx(second.mu)
