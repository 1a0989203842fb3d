"""The page's arithmetic, by Node without a browser: means over seeds, joined tables, ranges, CSV, explanations."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "pipeline" / "monitor" / "page"
NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="needs node")

SCRIPT = """
import {{ readFileSync }} from "node:fs";
const load = (name) => import("data:text/javascript," + encodeURIComponent(readFileSync(`{page}/${{name}}.js`, "utf8")));
const [series, explain] = [await load("series"), await load("explain")];
const page = readFileSync("{statistics}", "utf8");
const lines = [{{ xs: [0, 10, 20], values: [0, 10, 20] }}, {{ xs: [5, 15, 25], values: [7, 17, 27] }}];
const many = [1, 2].map((pace) => ({{ xs: Array.from({{ length: 9000 }}, (_, at) => pace * at), values: Array.from({{ length: 9000 }}, (_, at) => at) }}));
const thinned = series.joined(many, ["values"]);
console.log(JSON.stringify({{
  mean: series.meanOf(lines),
  joined: series.joined(lines, ["values", "low"]),
  same: series.joined([lines[0], {{ ...lines[0], low: [1, 2, 3] }}], ["values", "low"]),
  thinned: [thinned[0].length, thinned[0].at(-1), thinned[1].findLast((value) => value !== null), thinned[2].at(-1)],
  smoothed: series.smoothed([1, 3, null, 3], 0.5),
  most: series.mostOf([[...Array(98).fill(1), 2, 1e9]], 0, Infinity),
  few: series.mostOf([[1, 2, 1e9]], 0, Infinity) ?? null,
  at: [0, 1, 2, 3].map((row) => series.valueAt([null, 4, null, 5, null], row)).concat(series.valueAt([4, null], 1)),
  csv: series.csv(["step", 'a, "b"'], [[1, 2], [0.5, null]]),
  name: series.commonName(["ppo-1", "ppo-2"]),
  unexplained: {names}.filter((name) => !explain.explanationIn(page, name)?.what),
  signal: explain.explanationIn(page, "Policy/Curiosity Value Estimate"),
  reward: explain.explanationIn(page, "Environment/Cumulative Reward"),
  own: explain.explanationIn(page, "my own") ?? null,
  pieces: explain.pieces("see [tuning](tuning.md), raise `beta`"),
}}));
"""


def names() -> list[str]:
    """The statistics that the documentation explains, with names for what is filled in."""
    text = (ROOT / "docs" / "statistics.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| statistic \|.*\n((?:\|.*\n)+)", text, flags=re.MULTILINE)
    cells = [line.split("|")[1] for table in tables for line in table.splitlines()[1:]]
    return [re.sub(r"<[^>]*>", "Foo Bar", name) for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


@cache
def computed() -> Any:
    script = SCRIPT.format(
        page=PAGE.as_posix(), statistics=(ROOT / "docs" / "statistics.md").as_posix(), names=json.dumps(names())
    )
    done = subprocess.run(
        [str(NODE), "--input-type=module", "-e", script], capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.lengthy
def test_seeds_are_drawn_as_their_mean_and_standard_deviation_where_all_have_points():
    """Of lines that are 2 apart: the mean in the middle, ± √2 by n - 1."""
    mean = computed()["mean"]
    assert mean["xs"] == [5, 10, 15, 20]
    assert mean["values"] == [6, 11, 16, 21]
    assert mean["low"] == pytest.approx([value - 2**0.5 for value in mean["values"]])


def test_lines_at_different_places_share_a_table_and_a_long_one_is_thinned():
    found = computed()
    assert found["joined"] == [[0, 5, 10, 15, 20, 25], [0, None, 10, None, 20, None], [None, 7, None, 17, None, 27]]
    assert found["same"] == [[0, 10, 20], [0, 10, 20], [0, 10, 20], [1, 2, 3]]
    assert found["thinned"] == [3001, 17998, 8999, 8999]


def test_smoothing_ranges_values_and_csv():
    found = computed()
    assert found["smoothed"] == [1, pytest.approx(7 / 3), None, pytest.approx(2.714286)]
    low, high = found["most"]
    assert low < 1 < high < 3  # without the outlier
    assert found["few"] is None
    assert found["at"] == [None, 4, 4, 5, None]  # beyond a line's end there is nothing
    assert found["csv"] == 'step,"a, ""b"""\n1,0.5\n2,\n'
    assert found["name"] == "ppo × 2"


def test_each_statistic_is_explained_by_the_documentations_own_text():
    found = computed()
    assert found["unexplained"] == []
    assert found["signal"]["what"].startswith("mean of the critic's value estimates")
    assert found["reward"]["should"].startswith("rise, with noise")
    assert found["own"] is None
    assert [piece["text"] for piece in found["pieces"] if piece["code"]] == ["beta"]
    assert found["pieces"][0]["text"] == "see tuning, raise "
