"""The first example of each page that trains something learns what the page is about, as it stands there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from page_code import ROOT, blocks
from run_configs import INLINE, Plain, changed
from runs import run_here

from headrace import evaluate, nash_conv
from headrace.pipeline.run import RunOptions, RunResult
from headrace.pipeline.run_handle import SummaryWritten

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def first_yaml(page: str) -> Plain:
    """The first YAML block of a page in docs/."""
    block = next(block for block in blocks("yaml") if block.page == ROOT / "docs" / page)
    plain: Plain = yaml.safe_load(block.text)
    return plain


def train(plain: Plain, tmp_path: Path, options: RunOptions | None = None, **changes: Any) -> RunResult:
    """Train in this process with a seed."""
    return run_here(changed(plain, {"env_settings__seed": 1, **INLINE, **changes}), tmp_path, "first", options)


def test_cartpole_with_the_stage_of_the_page_of_stages(tmp_path, monkeypatch):
    code = next(block.text for block in blocks("python") if block.page == ROOT / "docs" / "custom-stages.md")
    (tmp_path / "my_stages.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    assert evaluate(train(first_yaml("custom-stages.md"), tmp_path), "CartPole-v1", 30, seed=7).mean >= 150


def test_leduc_poker_of_the_page_of_openspiel(tmp_path):
    pytest.importorskip("pyspiel", reason="needs the extra `openspiel`")
    trained = train(first_yaml("openspiel.md"), tmp_path)
    assert nash_conv(trained, "leduc_poker") < 4.0  # uniform play has 4.75


def test_predators_of_the_page_of_pettingzoo(tmp_path):
    pytest.importorskip("mpe2", reason="needs the extra `pettingzoo`")
    returns: list[float] = []

    def keep(summary: SummaryWritten) -> None:
        if summary.behavior == "Predator" and "Environment/Cumulative Reward" in summary.values:
            returns.append(summary.values["Environment/Cumulative Reward"])

    train(first_yaml("pettingzoo.md"), tmp_path, RunOptions(on_summary=keep))
    assert np.mean(returns[-3:]) > 8.5  # 5.7 in 100 episodes of random agents; the prey learns to flee meanwhile
