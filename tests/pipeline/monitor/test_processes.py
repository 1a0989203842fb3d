"""What the hosts' processes use: read where they run on this machine, told where they don't."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from headrace.pipeline.common.process import ProcessUsage, read_usage, usage_lacks
from headrace.pipeline.monitor.shown_runs import Processes

pytestmark = pytest.mark.windows_too


def host(name: str, **changes):
    return {"name": name, "kind": "ray", "pid": None, "ended": False, "reported": None, **changes}


def usages(processes: Processes, *hosts):
    found = processes.measure(hosts)
    assert not any("reported" in each for each in found)  # which is not for the page
    return [each["usage"] for each in found]


def test_a_process_of_this_machine_is_read():
    (usage,) = usages(Processes(), host("main", kind="main", pid=os.getpid()))
    assert usage["memory"] > 2**20
    assert usage["cpu_s"] > 0


def test_the_usage_of_a_remote_process_follows_from_its_reports():
    processes = Processes()
    assert usages(processes, host("actor-0")) == [None]  # it has said nothing yet
    for told, cores in [((10, 3.0), 0.0), ((12, 4.0), 0.5), ((12, 4.0), 0.5), ((14, 4.5), 0.25)]:
        (usage,) = usages(processes, host("actor-0", reported=ProcessUsage(*told, 1000)))
        assert usage == {"cpu": cores, "cpu_s": told[1], "memory": 1000}


def test_the_usage_of_a_replacement_starts_from_zero():
    processes = Processes()
    usages(processes, host("actor-0", reported=ProcessUsage(10, 50.0, 1000)))
    assert usages(processes, host("actor-0", reported=ProcessUsage(20, 1.0, 1000)))[0]["cpu"] == 0
    assert usages(processes, host("actor-0", reported=ProcessUsage(22, 2.0, 1000)))[0]["cpu"] == 0.5


def test_ended_hosts_and_hosts_in_main_have_no_usage():
    told = ProcessUsage(10, 5.0, 1000)
    assert usages(
        Processes(), host("actor-0", reported=told, ended=True), host("actor-1", reported=told, kind="inline")
    ) == [
        None,
        None,
    ]


def test_of_hosts_that_share_a_process_the_first_has_its_usage():
    sharing = [host(name, kind="process", pid=os.getpid()) for name in ("learner-A", "learner-B")]
    used, none = usages(Processes(), *sharing)
    assert used is not None
    assert none is None


def test_psutil_reports_the_same_usage_as_linux(monkeypatch):
    here = read_usage(os.getpid())
    assert usage_lacks() == ""
    monkeypatch.setenv("HEADRACE_PLATFORM", "plain")
    there = read_usage(os.getpid())
    assert here is not None
    assert there is not None
    assert there.cpu_s == pytest.approx(here.cpu_s, abs=1)
    assert there.memory == pytest.approx(here.memory, rel=0.2)
    assert usage_lacks() == ""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
        assert read_usage(ended.pid) is None
