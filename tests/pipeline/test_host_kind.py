"""A kind of host from outside: one entry in the table, and the class that it names."""

from __future__ import annotations

import pytest
from run_configs import cartpole
from runs import run_here

from headrace.config.host_kinds import HOST_KINDS, HostKind
from headrace.pipeline.hosts.inline import InlineHosts


class CountedHosts(InlineHosts):
    """A kind of host from outside, which notes what it starts."""

    started: list[str] = []

    async def start(self, plan, feed=None, replaces=None):
        self.started.append(plan.name)
        return await super().start(plan, feed, replaces)


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("actors", "learners", "started"),
    [
        ("counted", "counted", ["actor-0", "learner-CartPole"]),
        ("counted", "inline", ["actor-0"]),
        ("inline", "counted", ["learner-CartPole"]),
    ],
)
def test_a_kind_of_host_that_is_an_entry_in_the_table_trains(monkeypatch, tmp_path, actors, learners, started):
    monkeypatch.setitem(HOST_KINDS, "counted", HostKind("counted", f"{__name__}:CountedHosts", in_main=True))
    CountedHosts.started.clear()
    hosts = {"actors": {"kind": actors}, "learners": {"kind": learners}}
    result = run_here(cartpole(behaviors__CartPole__max_steps=1500, pipeline__hosts=hosts), tmp_path, "run")
    assert result.behaviors["CartPole"].version > 1
    assert CountedHosts.started == started
