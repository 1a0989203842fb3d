"""The real page in a real browser, against real runs."""

from __future__ import annotations

import pytest
from browsers import complaints, needs_browser, opened_browser
from page_calls import Page, held_up
from run_configs import INLINE, volley
from runs import PATIENCE_S

pytestmark = [pytest.mark.lengthy, needs_browser]


@pytest.fixture(scope="module")
def browser():
    with opened_browser() as driver:
        yield driver


def until(browser, condition, what):
    """Wait until a JavaScript expression holds; it is returned."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, PATIENCE_S).until(lambda b: b.execute_script(f"return {condition}"), what)


def texts(browser, selector):
    return browser.execute_script(f"return [...document.querySelectorAll({selector!r})].map(e => e.textContent)")


STEP = "Number(document.querySelector('[data-step]')?.textContent.replaceAll(',', '') ?? -1)"
VALUE = "document.querySelector('[data-statistic=\"Losses/Value Loss\"] b')?.textContent"


def test_the_page_shows_and_controls_a_run(beside, browser):
    calm = {**INLINE, "pipeline__stages": [{"use": "calm_stages:Calm"}]}
    calm["behaviors__Volley__hyperparameters__beta"] = 5e-3
    plain = volley(**calm, behaviors__Volley__max_steps=10**8, behaviors__Volley__summary_freq=250)
    page = beside(plain)
    page.until(lambda state: state["behaviors"] and state["behaviors"][0]["step"] > 1000, "some steps")
    browser.get(page.address)
    until(browser, "document.querySelectorAll('.graph .edge').length > 3", "the graph")
    assert "token" not in browser.current_url
    hosts = browser.execute_script(
        "return [...document.querySelectorAll('.graph .host')].map(host => [host.dataset.host,"
        " [...host.querySelectorAll('[data-stage]')].map(stage => stage.dataset.stage).join()])"
    )
    assert dict(hosts) == {
        "main": "ghost,policy_publisher",
        "actor-0": "environment,agent_processor,Calm",
        "learner-Volley": "trainer",
    }
    shown = set(browser.execute_script("return [...document.querySelectorAll('.edge')].map(e => e.dataset.queue)"))
    assert {"trajectories/Volley", "learn/Volley", "updates/Volley"} <= shown
    until(browser, "document.querySelectorAll('.chart canvas').length > 3", "charts")
    load = "import('./dom.js').then((dom) => arguments[0](dom.labels([0.004996, 0.004998, 0.005])))"
    assert browser.execute_async_script(load) == ["0.004996", "0.004998", "0.005"]  # not three times 0.005
    load = "import('./dom.js').then((dom) => arguments[0](dom.labels([3.67131e20, 3.67132e20, 1e9, 2.5e8, 0])))"
    assert browser.execute_async_script(load) == ["3.67131e20", "3.67132e20", "1e9", "250M", "0"]
    load = (
        "import('./dom.js').then((dom) => arguments[0](['striker_number_0', 'Ball'].map((name) => dom.clip(name, 9))))"
    )
    assert browser.execute_async_script(load) == ["stri…er_0", "Ball"]
    cause = {"host": "learner-Volley", "stage": "trainer", "behavior": "Volley", "busy": 0.9, "wait": 0.83, "text": ""}
    state = {**page.state(), "bottleneck": cause}
    state["edges"] = [{**each, "held": 0.83 * (each["kind"] in ("learn", "credits"))} for each in state["edges"]]
    state["behaviors"] = [{**state["behaviors"][0], "policy_wait": 0.83}]
    load = (
        "Promise.all([import('./graph.js'), import('./tables.js')]).then(([graph, tables]) => arguments[1]("
        "[...[...graph.drawGraph(arguments[0]).querySelectorAll('[data-level=bad]')].map((e) => e.dataset.host ??"
        " e.dataset.queue), graph.drawGraph(arguments[0]).querySelector('.host.bad .numbers').textContent,"
        " tables.behaviorTable(arguments[0]).querySelector('[data-waits]').textContent,"
        " graph.drawGraph(arguments[0]).querySelectorAll('[data-queue^=credits] .slot').length]))"
    )
    assert browser.execute_async_script(load, state) == [
        "learner-Volley",
        "learn/Volley",
        "credits/Volley",
        "90 % busy",
        "83 %",
        0,  # where its numbers stand
    ]
    browser.execute_script(
        "window.confirm = (words) => (window.asked = words, true);"
        "const input = document.querySelector('input[name=beta]');"
        "input.value = '0.1'; input.form.requestSubmit();"
    )
    until(
        browser,
        "window.asked?.startsWith('beta of Volley is 0.005, and 0.1 differs from it by more than a factor of 10')",
        "the question",
    )
    page.until(lambda state: state["behaviors"][0]["hyperparameters"]["beta"] == 0.1, "the new value")
    before = until(browser, VALUE, "a curve's newest value")
    until(browser, f"{VALUE} !== {before!r}", "a curve that grows")
    until(browser, "document.querySelector('#log .log').children.length > 0", "the log")
    browser.find_element("css selector", "[data-do=pause]").click()
    until(browser, "document.querySelector('.pill').textContent === 'paused'", "the pause")
    until(browser, f"(window.seen = window.seen ?? [], window.seen.push({STEP}), window.seen.slice(-8).length === 8"
          " && new Set(window.seen.slice(-8)).size === 1)", "a step counter that stands still")  # fmt: skip
    stood = browser.execute_script(f"return {STEP}")
    browser.find_element("css selector", "[data-do=pause]").click()
    until(browser, f"{STEP} > {stood}", "further steps")
    assert page.call("/api/runs/live/stop", body={})[0] == 200
    until(browser, "document.querySelector('#banner').textContent.startsWith('The run has ended')", "its end")
    gone = ("stream", "ERR_CONNECTION_REFUSED", "428")  # with the run; and the question before beta was set
    assert [line for line in complaints(browser) if not any(word in line for word in gone)] == []


@pytest.mark.slow
def test_the_page_marks_a_stage_that_blocks_its_producers(start, browser, tmp_path):
    page = Page(start(held_up(tmp_path), "--monitor=0"))
    browser.get(page.address)
    until(browser, "document.querySelector('.edge[data-level=bad] .slot.full') !== null", "a full queue")
    assert "waits" in "".join(texts(browser, ".edge[data-level=bad] .numbers"))
    assert texts(browser, "[data-do]") == ["Watch a game"]  # no controls without the option
    page.command.process.kill()
    until(browser, "document.querySelector('.pill').textContent === 'connection lost'", "the loss")
    assert "no longer responding" in texts(browser, "#banner")[0]
