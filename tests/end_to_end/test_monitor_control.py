"""Steering real runs through the page's API: pause, resume, checkpoint, stop, hyperparameters, and who may not."""

from __future__ import annotations

import os
import re
import signal

import pytest
from page_calls import LONG, LONG_HERE, Page, RunBeside
from run_configs import changed, volley

from headrace.config import load_config
from headrace.pipeline.run import run

RUN = "/api/runs/live"
LONG_PLAY = volley(behaviors__Volley__max_steps=10**8, behaviors__Volley__checkpoint_interval=10**8)


@pytest.fixture
def steered(start):
    def begin(plain=LONG, *arguments):
        page = Page(start(plain, "--monitor=0", "--monitor-control", *arguments))
        page.until(lambda state: state["status"] == "running" and sum_of(state) > 0, "the first steps")
        return page

    return begin


def sum_of(state):
    return sum(each["step"] for each in state["behaviors"])


def learning_rate_in(state):
    return state["behaviors"][0]["hyperparameters"]["learning_rate"] if state["behaviors"] else None


def stands_still(page):
    """Wait until the step counter has stood still for three states; it is returned."""
    seen = []

    def still(state):
        if not seen or seen[-1][0] != state["time"]:
            seen.append((state["time"], sum_of(state)))
        return len(seen) > 3 and len({step for _, step in seen[-4:]}) == 1

    return sum_of(page.until(still, "a step counter that stands still"))


@pytest.mark.slow
def test_a_paused_run_in_processes_saves_and_stops(steered):
    page = steered(LONG_PLAY)
    assert_paused_and_resumed(page)
    assert page.call(f"{RUN}/pause", body={})[0] == 200
    assert page.call(f"{RUN}/stop", body={})[0] == 200
    assert page.command.wait() == 0, page.command.output
    page.command.assert_left_nothing()


def test_a_pause_stops_the_steps_and_a_checkpoint_can_be_saved_meanwhile(one_page):
    assert_paused_and_resumed(one_page)


def assert_paused_and_resumed(page):
    """In the pause nothing but a checkpoint comes; after it, further steps."""
    assert page.call(f"{RUN}/pause", body={}) == (200, {"done": True})
    assert page.until(lambda state: state["status"] == "paused", "the pause")
    step = stands_still(page)
    assert page.call("/healthz") == (200, {"status": "paused"})
    before = page.state()["checkpoint"]
    assert page.call(f"{RUN}/checkpoint", body={})[0] == 200
    page.until(lambda state: state["checkpoint"] > before, "a checkpoint")
    assert page.call(f"{RUN}/resume", body={})[0] == 200
    page.until(lambda state: sum_of(state) > step and state["status"] == "running", "further steps")


@pytest.mark.slow
def test_an_actor_that_dies_in_a_pause_is_replaced(steered):
    page = steered()
    page.call(f"{RUN}/pause", body={})
    step = stands_still(page)
    os.kill(page.command.pid_of("actor-0"), signal.SIGKILL)
    page.command.until(lambda: "Restarting it" in page.command.output, "another actor")
    assert stands_still(page) - step < 1000
    page.call(f"{RUN}/resume", body={})
    page.until(lambda state: sum_of(state) > step, "further steps")


def test_a_changed_hyperparameter_is_used_logged_and_kept_by_a_resumed_run(beside, tmp_path):
    page = beside(LONG_HERE)
    page.until(lambda state: sum_of(state) > 0, "the first steps")
    change = {"behavior": "CartPole", "name": "learning_rate", "value": 1.5e-4}
    assert page.call(f"{RUN}/hyperparameters", change) == (200, {"done": True})
    page.command.until(lambda: "CartPole: learning_rate changed to 0.00015 at step" in page.command.output, "the log")
    page.until(lambda state: learning_rate_in(state) == 1.5e-4, "the value in the state")

    def rate():
        return page.call(f"{RUN}/curves")[1]["curves"]["CartPole"]["Policy/Learning Rate"]["values"][-1]

    page.until(lambda _: rate() == pytest.approx(1.5e-4, rel=0.01), "the learning rate in the statistics")
    assert page.call(f"{RUN}/stop", body={})[0] == 200
    page.command.end()
    again = beside(LONG_HERE, resume=True)
    words = "CartPole continues with learning_rate 0.00015, which was set during the run."
    again.command.until(lambda: words in again.command.output, words)
    again.until(lambda state: learning_rate_in(state) == 1.5e-4, "the value in the state")
    marks = again.call(f"{RUN}/curves")[1]["marks"]["CartPole"]
    texts = [text for _, _, _, text in marks]
    assert (texts[0], texts[-1]) == ("learning_rate = 0.00015", "restart")
    assert [(kind, text) for _, _, kind, text in marks if text == "checkpoint 0"] == [("checkpoint", "checkpoint 0")]
    again.command.end()
    log = tmp_path / "run" / "run_logs" / "run.log"
    before = len(log.read_text(encoding="utf-8"))
    resume_to_its_end(tmp_path, "behaviors.CartPole.hyperparameters.learning_rate=2e-3")
    resume_to_its_end(tmp_path)
    assert f"{words} The YAML's 0.001 has no effect." in again.command.output
    assert re.findall("CartPole continues with .*", log.read_text(encoding="utf-8")[before:]) == [
        "CartPole continues with learning_rate 0.002, as given by --set, instead of 0.00015, which was set during the "
        "run.",
    ]


def resume_to_its_end(results, *overrides):
    """Resume in this process a run that has reached its end by now."""
    settings = {"results_dir": str(results), "run_id": "run", "resume": True}
    ended = changed(LONG_HERE, {"behaviors__CartPole__max_steps": 1, "checkpoint_settings": settings})
    run(load_config(ended, overrides))


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        (
            {"behavior": "CartPole", "name": "learning_rate", "value": 0},
            422,
            "behaviors.CartPole.hyperparameters.learning_rate: 0.0 is out of range; expected a number greater than 0",
        ),
        ({"behavior": "CartPole", "name": "learning_rate", "value": "fast"}, 422, "value: 'fast' is not valid"),
        (
            {"behavior": "CartPole", "name": "beta", "value": 0.1},
            428,
            "beta of CartPole is 0.005, and 0.1 differs from it by more than a factor of 10",
        ),
        ({"behavior": "CartPole", "name": "batch_size", "value": 7}, 404, "these can: learning_rate, beta, epsilon"),
        ({"behavior": "Cart", "name": "beta", "value": 7}, 404, "available: CartPole"),
        (b"{", 400, "not JSON"),
    ],
)
def test_an_invalid_change_is_refused(one_page, change, status, words):
    before = one_page.state()["behaviors"][0]["hyperparameters"]
    found, answer = one_page.call(f"{RUN}/hyperparameters", change)
    assert found == status
    assert words in answer["error"]
    assert one_page.state()["behaviors"][0]["hyperparameters"] == before


def test_requests_without_the_token_or_from_another_page_are_refused(one_page):
    for what in ("pause", "stop", "checkpoint", "hyperparameters"):
        assert one_page.call(f"{RUN}/{what}", body={}, token="wrong")[0] == 401
        assert one_page.call(f"{RUN}/{what}?token=wrong", body={}, token=" ")[0] == 401
        assert one_page.call(f"{RUN}/{what}", body={}, Origin="http://evil.example")[0] == 403
        assert one_page.call(f"{RUN}/{what}", body={}, Host="evil.example")[0] == 403
    assert one_page.state()["status"] == "running"


def test_unknown_paths_and_foreign_hosts_are_refused_and_the_run_continues(one_page):
    for path in ("/api/runs/none/state", "/api/none", "/..%2f..%2fsetup.cfg"):
        assert one_page.call(path)[0] == 404
    assert one_page.call(f"{RUN}/state", body={})[0] == 405
    assert one_page.call(f"{RUN}/state", Host="evil.example")[0] == 403
    assert one_page.call(f"{RUN}/stream", Origin="http://evil.example")[0] == 403
    assert one_page.call("/", Host=f"localhost:{one_page.origin.rpartition(':')[2]}")[0] == 200
    before = one_page.step()
    one_page.until(lambda state: sum_of(state) > before, "further steps")


def test_the_api_describes_itself(one_page):
    status, document = one_page.call("/api/openapi.json")
    assert status == 200
    body = document["paths"]["/api/runs/live/hyperparameters"]["post"]["requestBody"]
    assert body["content"]["application/json"]["schema"]["required"] == ["behavior", "name", "value"]


@pytest.fixture(scope="module")
def one_page(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_TOKEN", "ours")
        beside = RunBeside(tmp_path_factory.mktemp("steered"), LONG_HERE)
        page = Page(beside, "ours")
        page.until(lambda state: state["status"] == "running" and state["behaviors"], "a running run")
    yield page
    beside.end()


@pytest.mark.slow
def test_controls_are_off_without_monitor_control(start):
    page = Page(start(LONG, "--monitor=0"))
    assert page.token == ""
    page.until(lambda state: state["status"] == "running", "the start")
    for what in ("pause", "stop", "checkpoint", "hyperparameters"):
        status, answer = page.call(f"{RUN}/{what}", body={})
        assert (status, answer["error"]) == (403, "controls are off: start the run with --monitor-control")
    assert page.state()["status"] == "running"
