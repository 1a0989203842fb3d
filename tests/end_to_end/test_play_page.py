"""A person watches a real run in a real browser, plays in it, and is imitated by a clone."""

from __future__ import annotations

import os
import signal

import pytest
from browsers import complaints, needs_browser, opened_browser
from page_calls import CALM, Page
from run_configs import volley
from runs import PATIENCE_S, run_here

from headrace.pipeline.policies.model_files import find_model, read_model
from headrace.stages.trainer.imitation.loading import load_demonstrations

pytestmark = needs_browser
LONG = volley(
    environment__kind="builtin",
    environment__id="Volley",
    environment__factory=None,
    environment__options={"points_to_win": 5},
    behaviors__Volley__max_steps=10**8,
    behaviors__Volley__checkpoint_interval=10**8,
    pipeline__stages=[{"use": "calm_stages:Calm"}],
)
DRAWN = "Number(document.querySelector('.stage canvas')?.dataset.drawn ?? 0)"
PLACE = "(window.place ?? 0)"
RECORDED = "Number(document.querySelector('[data-do=record]').textContent.match(/\\d+/)?.[0] ?? 0)"


@pytest.fixture(scope="module")
def browser():
    with opened_browser() as driver:
        yield driver


def until(browser, condition, what):
    """Wait until a JavaScript expression holds; it is returned."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, PATIENCE_S).until(lambda b: b.execute_script(f"return {condition}"), what)


def click(browser, selector):
    browser.execute_script(f"document.querySelector({selector!r}).click()")


def hold(browser, key, done):
    """Hold a key of the real keyboard until a condition holds."""
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser).key_down(key).perform()
    until(browser, done, "what the key does")
    ActionChains(browser).key_up(key).perform()


FASTER = """
const speed = document.querySelector('select[aria-label=Speed]');
speed.value = 4;
speed.dispatchEvent(new Event('change'));
"""
SPY = """
const done = arguments[0];
import('/stage.js').then(({ Stage }) => {
  const show = Stage.prototype.show;
  Stage.prototype.show = function (values, image) {
    window.place = values.shapes.filter((s) => s[0] === 'disc' && s[6] && Math.abs(s[3] - 0.34) < 0.04)[0][1];
    return show.call(this, values, image);
  };
  done();
});
"""
"""Keeps the place of the left player of the last picture that came, as the page itself only draws it."""


def test_a_player_moves_an_agent_and_the_recording_trains_a_clone(start, browser, tmp_path):
    from selenium.webdriver.common.keys import Keys

    page = Page(start(LONG, "--monitor=0", "--monitor-control", beside=[CALM]))
    browser.get(page.address)
    until(browser, "document.querySelector('[data-do=watch]')", "the section")
    browser.execute_async_script(SPY)
    click(browser, "[data-do=watch]")
    until(browser, f"{DRAWN} > 10", "pictures")
    assert "red, left" in browser.execute_script("return document.querySelector('.score').textContent")
    browser.execute_script(FASTER)
    click(browser, "[data-take='Volley?team=0']")
    until(browser, "document.querySelector('.note').textContent === '1'", "the countdown")
    until(browser, "document.activeElement.className === 'stage'", "the keyboard's focus")
    click(browser, "[data-do=record]")
    hold(browser, Keys.ARROW_RIGHT, f"{PLACE} > -0.6")
    hold(browser, Keys.ARROW_LEFT, f"{PLACE} < -2.5 && {RECORDED} > 20")
    click(browser, "[data-do=record]")
    until(browser, "document.querySelector('.watch').textContent.includes('demonstrations/Volley')", "what was saved")
    assert complaints(browser) == []

    stream = page.command.run_folder / "demonstrations" / "Volley-agent_processor-0001.stream"
    seen = load_demonstrations(str(stream), "Volley")
    assert {0, 2} <= set(seen.choices[:, 0].tolist())
    assert (load_demonstrations(str(stream.with_suffix(".demo")), "Volley").choices == seen.choices).all()
    cloning = {"demo_path": str(stream), "batch_size": 16, "buffer_size": 64, "num_epoch": 4}
    cloning |= {"learning_rate": 0.01, "held_out": 0.0}
    block = {"trainer_type": "bc", "max_steps": 1000, "hyperparameters": cloning, "summary_freq": 1000}
    run_here({"behaviors": {"Volley": block}, "env_settings": {"seed": 1}}, tmp_path, "clone")
    model = read_model(find_model(str(tmp_path / "clone")))
    made = model.make_policy().act((seen.observations[0],), None, None, deterministic=True)
    assert (made.actions.discrete == seen.choices).all(axis=1).mean() > 0.8


BOARD = {
    "environment": {"kind": "builtin", "id": "ConnectFour", "behavior": "Four", "num_envs": 1},
    "behaviors": {
        "Four": {"trainer_type": "ppo", "brain": [{"use": "player", "teams": [1]}, {"use": "random", "teams": [0]}]}
    },
}
PLACES = """return [...document.querySelectorAll('.pad')].map((pad) => pad.getBoundingClientRect()).map((box) =>
 [Math.round(box.top), (box.left + box.width / 2 - canvas.left) / canvas.width])"""


@pytest.mark.slow
def test_each_button_stands_below_its_column_on_a_phone_and_sides_have_their_colours(start, browser):
    page = Page(start(BOARD, "--monitor=0", "--monitor-control"))
    page.command.until(lambda: "waiting for a person to play for yellow" in page.command.output, "the wait")
    size = {"width": 390, "height": 850, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        browser.get(page.address)
        until(browser, "document.querySelector('.pill')?.textContent === 'running'", "a run that has started")
        click(browser, "[data-do=watch]")
        until(browser, "document.querySelector('[data-take]')", "the sides")
        click(browser, "[data-take]")
        until(browser, f"document.querySelectorAll('.pad').length === 7 && {DRAWN} > 1", "the columns")
        places = browser.execute_script(
            f"const canvas = document.querySelector('.stage canvas').getBoundingClientRect(); {PLACES}"
        )
        assert len({top for top, _ in places}) == 1
        columns = [(0.35 + column + 0.5) / 7.7 for column in range(7)]  # of a board with a margin of 0.35
        assert [across for _, across in places] == pytest.approx(columns, abs=0.02)
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    links = "[...document.querySelectorAll('nav a')].filter((each) => !each.hidden).map((each) => each.textContent)"
    assert browser.execute_script(f"return {links}.includes('Self-play')") is False


@pytest.mark.slow
def test_a_killed_game_of_the_page_can_be_restarted(start, browser):
    page = Page(start(LONG, "--monitor=0", beside=[CALM]))
    browser.get(page.address)
    until(browser, "document.querySelector('[data-do=watch]')", "the section")
    click(browser, "[data-do=watch]")
    until(browser, f"{DRAWN} > 3", "pictures")
    browser.execute_script(
        "[...document.querySelectorAll('button')].find((each) => each.textContent === 'Close').click()"
    )
    click(browser, "[data-do=watch]")
    until(browser, f"{DRAWN} > 3 && document.querySelectorAll('.side').length === 2", "all of it again")
    assert browser.execute_script("return document.querySelectorAll('[data-take]').length") == 0  # no token
    os.kill(page.command.pid_of("exhibition"), signal.SIGKILL)
    until(browser, "document.querySelector('.watch').textContent.includes('killed by signal 9')", "the failure")
    before = page.step()
    page.until(lambda state: sum(each["step"] for each in state["behaviors"]) > before, "further steps")
    drawn = browser.execute_script(f"return {DRAWN}")
    click(browser, "[data-do=again]")
    until(browser, f"{DRAWN} > {drawn + 3}", "pictures again")
    page.command.interrupt()
    assert page.command.wait() == 0, page.command.output
    assert page.command.output.count("The game on the live page has failed") == 1
