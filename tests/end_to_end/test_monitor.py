"""The live page of real runs, as programs see it: its API, what it refuses, and how it ends."""

from __future__ import annotations

import json
import socket
from itertools import pairwise
from urllib.parse import quote

import pytest
import yaml
from page_calls import LONG, LONG_HERE, Page
from run_configs import INLINE, cartpole, changed, volley
from runs import run_here

from headrace.pipeline.cli import main
from headrace.pipeline.monitor.api import PAGE

FAILING = """
from pathlib import Path
from headrace.stages import Stage


class Failing(Stage):
    def process(self, batch):
        if Path("now").exists():
            raise ValueError("this one fails")
        yield batch
"""


def test_the_api_shows_the_wiring_progress_curves_and_end_of_a_run(beside):
    plain = volley(**INLINE, behaviors__Volley__max_steps=10**8, behaviors__Volley__summary_freq=250)
    page = beside(changed(plain, {"pipeline__stages": [{"use": "calm_stages:Calm"}]}))
    state = page.until(lambda s: s["behaviors"] and s["behaviors"][0]["step"] > 2500, "some steps")
    assert {host["name"]: host["stages"] for host in state["hosts"]} == {
        "main": ["ghost", "policy_publisher"],
        "actor-0": ["environment", "agent_processor", "Calm"],
        "learner-Volley": ["trainer"],
    }
    assert {(edge["queue"], *edge["source"], *edge["target"]) for edge in state["edges"]} == {
        ("trajectories/Volley", "actor-0", "Calm", "main", "ghost"),
        ("learn/Volley", "main", "ghost", "learner-Volley", "trainer"),
        ("updates/Volley", "learner-Volley", "trainer", "main", "policy_publisher"),
        ("credits/Volley", "learner-Volley", "trainer", "actor-0", "environment"),
        ("policies/Volley?team=0", "main", "policy_publisher", "actor-0", "environment"),
        ("policies/Volley?team=1", "main", "policy_publisher", "actor-0", "environment"),
    }
    assert all(edge["capacity"] >= edge["depth"] >= 0 for edge in state["edges"])
    (of_main,) = [host["usage"] for host in state["hosts"] if host["usage"] is not None]  # the others have no process
    assert of_main["memory"] > 2**20
    assert state["players"][0]["opponents"]

    def curves():
        return page.call("/api/runs/live/curves")[1]["curves"]

    page.until(lambda _: "Self-play/ELO" in curves()["Volley"], "a rating, which comes with a game that has ended")
    assert len(curves()["Volley"]["Losses/Value Loss"]["steps"]) >= 4
    assert {"Policy/Entropy", "Pipeline/Steps per Second"} <= curves()["Volley"].keys()
    assert "max_steps: 100000000" in page.call("/api/runs/live/configuration")[1]["yaml"]
    assert any("Connected new brain" in line["text"] for line in page.call("/api/runs/live/log")[1])
    assert page.call("/healthz") == (200, {"status": "running"})
    status, metrics = page.call("/metrics")
    assert status == 200
    assert 'headrace_steps_total{behavior="Volley"}' in metrics
    assert 'headrace_queue_depth{queue="learn/Volley",source="main",target="learner-Volley"}' in metrics
    assert "# TYPE headrace_bottleneck gauge" in metrics
    events = page.stream()
    seen = [next(events) for _ in range(3)]
    assert all(after["sequence"] > before["sequence"] for before, after in pairwise(seen))
    assert page.call("/api/runs/live/stop", body={})[0] == 200
    last = [*events][-1]["state"]
    assert last["status"] == "ended"


def test_a_run_that_only_plays_shows_neither_start_nor_end_nor_checkpoint(start, tmp_path):
    plain = cartpole(**INLINE, behaviors__CartPole__max_steps=1000, behaviors__CartPole__summary_freq=500)
    run_here(plain, tmp_path / "results", "run")
    page = Page(start(plain, "--inference", "--monitor=0", "--monitor-control"))
    state = page.until(lambda s: s["behaviors"] and s["behaviors"][0]["step"] > 1500, "steps beyond max_steps")
    (behavior,) = state["behaviors"]
    assert (state["status"], state["checkpoint"]) == ("running", None)
    assert (state["seconds_left"], behavior["max_steps"], behavior["seconds_left"]) == (None, None, None)
    assert page.call("/api/runs/live/checkpoint", body={})[0] == 409
    assert "headrace_max_steps{" not in page.call("/metrics")[1]


def test_other_machines_need_the_token_which_is_in_no_file_and_no_answer(beside, tmp_path, capsys):
    secret = 'se cr+t/?&"'
    page = beside({**LONG_HERE, "debug": True}, token=secret, monitor={"listen": "all:0"})
    shown = quote(secret, safe="")
    assert f"/?token={shown} (from other machines: http://" in capsys.readouterr().out
    assert "Other machines can reach port" in page.command.output
    for path in ("/api/runs", "/api/runs/live/configuration", "/api/runs/live/stream", "/metrics"):
        assert page.call(path, token="wrong")[0] == 401
    assert page.call("/api/runs")[0] == 200
    assert page.call("/", token="wrong")[0] == 200
    assert page.call("/healthz", token="wrong")[0] == 200
    page.until(lambda state: state["status"] == "running" and state["behaviors"], "a running run")
    document = page.call("/api/openapi.json")[1]["paths"]
    paths = {*(path.replace("{run}", "live") for path in document), *PAGE, "/api/runs", "/metrics", "/healthz"} - {
        "/api/runs/live/stream"
    }
    answers = [page.call(path, method="GET") for path in paths]
    answers += [
        page.call("/api/runs/live/pause", body={}, token=f"{secret}x"),
        page.call(f"/{shown[::-1]}?token={shown}"),
    ]
    assert any("The live page of this run" in str(answer) for _, answer in answers)
    page.command.end()
    written = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert any(b"The live page of this run: http://localhost" in content for content in written)
    for form in (secret, shown, json.dumps(secret)[1:-1]):
        assert not [answer for answer in answers if form in str(answer)]
        assert not [content for content in written if form.encode() in content]


@pytest.mark.slow
def test_the_page_reports_a_failed_run(start, tmp_path):
    (tmp_path / "failing_stage.py").write_text(FAILING)
    stages = [{"use": "failing_stage:Failing", "after": "agent_processor", "host": "main"}]
    page = Page(start(changed(LONG, {**INLINE, "pipeline__stages": stages}), "--monitor=0"))
    events = page.stream()
    assert next(events)["state"]["status"] in ("starting", "running")
    (tmp_path / "now").touch()
    last = [*events][-1]["state"]
    assert last["status"] == "failed"
    assert "this one fails" in last["message"]
    assert page.command.wait() == 1, page.command.output


def test_a_port_in_use_is_refused_before_the_run_begins(tmp_path, in_this_process):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = called(in_this_process, tmp_path, f"--monitor={port}")
    assert f"monitor.listen: can't listen on localhost:{port}: another program is using it" in said
    assert "Traceback" not in said


def test_an_invalid_address_is_refused(tmp_path, in_this_process):
    assert "'example.org' is not valid; expected localhost" in called(
        in_this_process, tmp_path, "--monitor=example.org:80"
    )


def called(in_this_process, folder, option):
    """What the command says of a mistake in an option."""
    (folder / "run.yaml").write_text(yaml.safe_dump(changed(LONG, INLINE)))
    return in_this_process(main, str(folder / "run.yaml"), f"--results-dir={folder}", option, status=2)
