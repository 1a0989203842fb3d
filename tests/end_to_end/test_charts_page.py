"""The charts of several runs in a real browser, what can be done with them, and whether everybody can read the page.

axe-core looks at the page where there is one: `pip install axe-core-python`, or its `axe.min.js` at `HEADRACE_AXE`.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from browsers import complaints, needs_browser, opened_browser
from runs import COMMAND, PATIENCE_S

from headrace.pipeline.reporting.statistics import Summary
from headrace.pipeline.reporting.writers import TensorboardWriter

pytestmark = [pytest.mark.slow, needs_browser]

LONG = "a_very_long_behaviour_name_for_the_left_wing_striker_number_0"
REWARD, LOSS = "Environment/Cumulative Reward", "Losses/Value Loss"
RUNS = {"ppo-1": 0, "ppo-2": 2, "sac-1": 10}
"""By name, what is added to all rewards."""
CHART = f'[data-statistic="{REWARD}"]'


def write_run(folder: Path, more: float) -> None:
    """A run of 100 summaries, whose reward is the summary's number and more."""
    folder.mkdir(parents=True)
    behaviors = {name: {"trainer_type": folder.name[:3], "max_steps": 10**10} for name in ("Ball", LONG)}
    settings = {"behaviors": behaviors, "env_settings": {"seed": int(more)}}
    (folder / "configuration.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    writer = TensorboardWriter(folder, resume=False)
    for number in range(1, 101):
        values = {REWARD: number + more, LOSS: 1e6 if number == 50 else 1 / number, "Pipeline/Updates": 4.0 * number}
        values |= {f"Policy/Other {count}": float(number) for count in range(30)}
        for name in behaviors:
            summaries = {key: Summary("last", value, value, 0.0, 1, value) for key, value in values.items()}
            writer.write(name, summaries, 10**8 * number)
    writer.mark("Ball", 50 * 10**8, "set", "beta = 0.1")
    writer.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    results = tmp_path_factory.mktemp("results")
    for name, more in RUNS.items():
        write_run(results / name, more)
    line = [sys.executable, str(COMMAND), "--view", *RUNS, "--results-dir", str(results), "--monitor=0"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"(http://\S+)", process.stdout.readline())
            assert found is not None
            yield found[1]
        finally:
            process.kill()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with opened_browser() as driver:
        driver.set_script_timeout(PATIENCE_S)
        yield driver


class Charts:
    """The page as a user has it."""

    def __init__(self, browser: Any, address: str, width: int = 1400) -> None:
        self.browser = browser
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(address)
        self.until("document.querySelectorAll('.chart canvas').length === 33", "all charts, in view or not")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    def until(self, condition: str, what: str) -> Any:
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.browser, PATIENCE_S).until(lambda _: self.run(f"return {condition}"), what)

    def click(self, selector: str) -> None:
        self.run("document.querySelector(arguments[0]).click()", selector)

    def values(self, chart: str = CHART) -> str:
        return self.run("return document.querySelector(arguments[0]).innerText", f"{chart} .values")

    def enlarged(self) -> str:
        """Enlarge the reward's chart; what is then said of it."""
        self.click(f"{CHART} .name button")
        return self.until("document.querySelector('dialog[open] .explained')?.innerText", "its explanation")

    def blob(self, kind: str) -> bytes:
        """What the large chart saves."""
        script = (
            f"const done = arguments[0]; const saved = URL.createObjectURL; URL.createObjectURL = (blob) => {{"
            " URL.createObjectURL = saved; const reader = new FileReader(); reader.onload = () => done(reader.result);"
            " reader.readAsDataURL(blob); return saved.call(URL, blob); };"
            f"document.querySelector('[data-do={kind}]').click()"
        )
        return base64.b64decode(self.browser.execute_async_script(script).partition(",")[2])


@pytest.fixture
def charts(browser: Any, address: str) -> Charts:
    browser.get_log("browser")
    return Charts(browser, address)


def test_runs_share_charts_and_seeds_are_averaged(charts):
    names = "[...document.querySelectorAll('.legend button')].map((each) => each.dataset.line).join()"
    charts.until(f"{names} === 'ppo × 2,sac-1'", "all runs")
    assert charts.values().split() == ["101", "110"]  # (100 + 102) / 2, and 110
    charts.click("[data-option=mean]")
    assert charts.run(f"return {names}") == "ppo-1,ppo-2,sac-1"
    assert charts.values().split() == ["100", "102", "110"]
    charts.click('[data-line="ppo-2"]')
    assert charts.values().split() == ["100", "110"]
    charts.click('[data-tab="*"]')
    charts.until(f"document.querySelectorAll('{CHART} .values span').length === 4", "both behaviours of both runs")
    assert complaints(charts.browser) == []


def test_the_menu_and_the_legend_show_what_is_there(charts):
    links = charts.run("return [...document.querySelectorAll('nav a')].filter((e) => e.offsetWidth).map((e) => e.hash)")
    assert links == ["#curves", "#configuration"]
    assert charts.run("return arguments[0].every((hash) => document.querySelector(hash).offsetHeight)", links)
    legend = "return [...document.querySelector('.legend').children].map((each) => each.textContent)"
    charts.until("document.querySelectorAll('.legend button').length === 2", "all runs")
    assert charts.run(legend) == ["ppo × 2 (mean ± SD)", "sac-1"]
    charts.click('[data-tab="*"]')
    assert charts.run(legend) == ["ppo × 2 (mean ± SD)", "sac-1", "Ball", f"{LONG[:16]}…{LONG[-15:]}"]
    tabs = "return [...document.querySelectorAll('[data-tab]')].map((each) => each.dataset.tab)"
    assert charts.run(tabs)[:3] == ["Ball", LONG, "*"]
    assert complaints(charts.browser) == []


def test_a_chart_has_axes_marks_and_files(charts):
    charts.click("[data-option=mean]")
    words = charts.enlarged()
    assert "return of the finished episodes" in words
    for option in ("log", "clip", "marked"):
        charts.click(f"[data-option={option}]")
    for axis, heads in (("updates", "updates"), ("times", "time"), ("steps", "step")):
        charts.click(f'[data-tab="{axis}"]')
        rows = charts.blob("csv").decode().splitlines()
        assert rows[0] == f"{heads},ppo-1,ppo-2,sac-1"
        if axis != "times":
            assert (
                rows[1:3]
                == {
                    "updates": ["4,1,3,11", "8,2,4,12"],
                    "steps": ["1" + "0" * 8 + ",1,3,11", "2" + "0" * 8 + ",2,4,12"],
                }[axis]
            )
    assert charts.blob("png")[:8] == b"\x89PNG\r\n\x1a\n"
    charts.run("const smooth = document.querySelector('[aria-label=Smoothing]'); smooth.value = 0.9;"
               "smooth.dispatchEvent(new Event('input'))")  # fmt: skip
    charts.until("document.querySelector('.chart.large .values').innerText.includes('91')", "a smoothed value")
    assert complaints(charts.browser) == []


def test_the_pointer_shows_the_values_of_all_charts(charts):
    from selenium.webdriver import ActionChains

    newest = f"document.querySelector('{CHART} .values').innerText"
    charts.until(f"{newest}.includes('101') && {newest}.includes('110')", "all runs")
    over = charts.browser.find_element("css selector", f"{CHART} .u-over")
    pointer = ActionChains(charts.browser)
    pointer.move_to_element(over).perform()  # the middle of 1 to 100
    charts.until(f"document.querySelector('{CHART} .near').textContent === 'beta = 0.1'", "the mark")
    assert charts.values().split()[0] in ("51", "52")  # the mean of two, which has the marks of both
    assert charts.values('[data-statistic="Policy/Other 3"]').split()[0] in ("50", "51")


def axe() -> str:
    """The text of axe-core."""
    if path := os.environ.get("HEADRACE_AXE"):
        return Path(path).read_text(encoding="utf-8")
    found = find_spec("axe_core_python")
    if found is None or found.origin is None:
        pytest.skip("needs axe-core: pip install axe-core-python, or HEADRACE_AXE=…/axe.min.js")
    return Path(found.origin).with_name("axe.min.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(browser, address, width, theme):
    source = axe()
    charts = Charts(browser, address, width)
    charts.run("localStorage.setItem('theme', arguments[0])", theme)
    charts = Charts(browser, address, width)
    charts.run("for (const each of document.querySelectorAll('details')) each.open = true")
    charts.run(source)
    for enlarged in (False, True):
        if enlarged:
            charts.enlarged()
        found = browser.execute_async_script(
            "axe.run(document).then((result) => arguments[0](result.violations.map((each) => [each.id, each.nodes.map("
            "(node) => node.html)])))"
        )
        assert found == [], json.dumps(found, indent=1)
