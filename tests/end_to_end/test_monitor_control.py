"""Steering real runs through the page's API: pause, resume, checkpoint, stop, hyperparameters, and who may not."""

from __future__ import annotations

import asyncio
import os
import re
import signal

import pytest
from fuzz_requests import of_page, requests, statuses
from page_calls import LONG, LONG_HERE, Page, RunBeside
from run_configs import INLINE, changed, volley

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


@pytest.mark.parametrize(
    "plain",
    [
        pytest.param(LONG, id="straight to the learner", marks=pytest.mark.slow),
        pytest.param(LONG_PLAY, id="through main", marks=pytest.mark.slow),
        pytest.param(changed(LONG, INLINE), id="inline", marks=pytest.mark.slow),
        pytest.param(changed(LONG, {"pipeline__deterministic": True}), id="deterministic", marks=pytest.mark.slow),
    ],
)
def test_a_paused_run_saves_goes_on_and_stops(steered, plain):
    page = steered(plain)
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
def test_an_actor_that_dies_in_a_pause_is_replaced_and_waits_too(steered):
    page = steered()
    page.call(f"{RUN}/pause", body={})
    step = stands_still(page)
    os.kill(page.command.pid_of("actor-0"), signal.SIGKILL)
    page.command.until(lambda: "Restarting it" in page.command.output, "another actor")
    assert stands_still(page) - step < 1000
    page.call(f"{RUN}/resume", body={})
    page.until(lambda state: sum_of(state) > step, "further steps")


def test_a_hyperparameter_that_was_set_is_used_logged_saved_and_kept_by_a_resumed_run(beside, tmp_path):
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
        ({"behavior": "CartPole", "name": "learning_rate", "value": "1e-3"}, 422, "expected a number"),
        ({"behavior": "CartPole", "name": "learning_rate", "value": True}, 422, "expected a number"),
        ({"behavior": "CartPole", "name": "learning_rate", "value": float("nan")}, 422, "expected a finite number"),
        ({"behavior": "CartPole", "name": "learning_rate", "value": 10**400}, 422, "expected a number"),
        ({"behavior": "CartPole", "name": "beta", "value": 5e-3, "confirm": 1}, 422, "expected true or false"),
        ({"behavior": "CartPole", "name": "beta", "value": -1, "confirm": True}, 422, "beta: -1.0 is out of range"),
        (
            {"behavior": "CartPole", "name": "beta", "value": 0.1},
            428,
            "beta of CartPole is 0.005, and 0.1 differs from it by more than a factor of 10",
        ),
        ({"behavior": "CartPole", "name": "beta", "value": 0}, 428, "confirm: true"),
        ({"behavior": "\ud800", "name": "beta", "value": 7}, 400, "surrogates"),
        ({"behavior": "CartPole", "name": "\ud800", "value": 7}, 400, "surrogates"),
        ({"behavior": "CartPole", "name": "beta", "value": 7, "\udfff": 1}, 400, "surrogates"),
        ({"behavior": "CartPole", "name": "batch_size", "value": 7}, 404, "these can: learning_rate, beta, epsilon"),
        ({"behavior": "Cart", "name": "beta", "value": 7}, 404, "available: CartPole"),
        ({"behavior": "CartPole", "name": "beta"}, 422, "value"),
        (b"{", 400, "not JSON"),
        (b" " * 100_000, 413, ""),
    ],
)
def test_a_change_that_does_not_fit_is_refused_and_nothing_changes(one_page, change, status, words):
    before = one_page.state()["behaviors"][0]["hyperparameters"]
    found, answer = one_page.call(f"{RUN}/hyperparameters", change)
    assert found == status
    assert words in answer["error"]
    assert one_page.state()["behaviors"][0]["hyperparameters"] == before


@pytest.mark.parametrize("what", ["pause", "stop", "checkpoint", "hyperparameters"])
def test_whoever_lacks_the_token_or_comes_from_another_page_steers_nothing(one_page, what):
    assert one_page.call(f"{RUN}/{what}", body={}, token="wrong")[0] == 401
    assert one_page.call(f"{RUN}/{what}?token=wrong", body={}, token=" ")[0] == 401
    assert one_page.call(f"{RUN}/{what}", body={}, Origin="http://evil.example")[0] == 403
    assert one_page.call(f"{RUN}/{what}", body={}, Host="evil.example")[0] == 403
    assert one_page.state()["status"] == "running"


def test_whoever_may_not_call_the_page_is_refused_and_the_run_goes_on(one_page):
    for path in ("/api/runs/none/state", "/api/none", "/..%2f..%2fsetup.cfg"):
        assert one_page.call(path)[0] == 404
    assert one_page.call(f"{RUN}/state", body={})[0] == 405
    assert one_page.call(f"{RUN}/state", Host="evil.example")[0] == 403
    assert one_page.call(f"{RUN}/stream", Origin="http://evil.example")[0] == 403
    assert one_page.call("/", Host=f"localhost:{one_page.origin.rpartition(':')[2]}")[0] == 200
    before = one_page.step()
    one_page.until(lambda state: sum_of(state) > before, "further steps")


def test_mutated_requests_are_answered_or_refused_and_change_nothing(one_page):
    before, port = one_page.state()["behaviors"][0]["hyperparameters"], int(one_page.origin.rpartition(":")[2])
    found = asyncio.run(statuses(port, requests(0, 150, of_page(one_page.token, "CartPole"))))
    assert found[200] > 10
    assert found[422] > 5
    assert one_page.state()["behaviors"][0]["hyperparameters"] == before
    assert one_page.state()["status"] == "running"
    assert "could not be answered" not in one_page.command.output


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
def test_without_the_option_nothing_can_be_steered(start):
    page = Page(start(LONG, "--monitor=0"))
    assert page.token == ""
    page.until(lambda state: state["status"] == "running", "the start")
    for what in ("pause", "stop", "checkpoint", "hyperparameters"):
        status, answer = page.call(f"{RUN}/{what}", body={})
        assert (status, answer["error"]) == (403, "controls are off: start the run with --monitor-control")
    assert page.state()["status"] == "running"
