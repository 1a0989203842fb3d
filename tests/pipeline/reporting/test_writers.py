"""Statistics writers of the user's own: how they are made, and that they can't harm the run."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.config import RunConfig
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.reporting.statistics import Summary
from headrace.pipeline.reporting.writers import GuardedWriter, check_writers, make_writers

EXAMPLE = Path(__file__).parents[3] / "examples" / "custom_stages"
SUMMARY = Summary("mean", mean=2.5, sum=5.0, std=0.5, count=2, last=3.0)


def config(*writers: Mapping[str, Any]) -> RunConfig:
    """A configuration that lies beside the example's modules."""
    return RunConfig.from_plain(
        {"behaviors": {"B": {}}, "pipeline": {"statistics_writers": list(writers)}}, EXAMPLE / "x.yaml"
    )


class Broken:
    """Fails as often as it is called, and counts that."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def write(self, category: str, summaries: Mapping[str, Summary], step: int) -> None:
        self.calls.append("write")
        raise ConnectionError("no network")

    def add_property(self, category: str, name: str, value: object) -> None:
        self.calls.append("add_property")

    def close(self) -> None:
        self.calls.append("close")
        raise ValueError("closed before")


def test_the_example_writes_a_line_of_json_for_each_summary(tmp_path: Path):
    (writer,) = make_writers(config({"use": "my_writer:JsonLines", "with": {"file": "a.jsonl"}}), tmp_path)
    writer.add_property("B", "hyperparameters", {"batch_size": 1})
    writer.write("B", {"Reward": SUMMARY}, 1000)
    writer.close()
    writer.close()
    assert json.loads((tmp_path / "a.jsonl").read_text()) == {"category": "B", "step": 1000, "Reward": 2.5}


def test_a_writer_that_raises_is_named_and_called_no_more_except_to_close(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.ERROR)
    broken = Broken()
    writer = GuardedWriter(broken, "my:Broken")
    writer.write("B", {}, 1)
    writer.write("B", {}, 2)
    writer.add_property("B", "a", 1)
    writer.close()
    assert broken.calls == ["write", "close"]
    written, closed = [re.sub(rf"{re.escape(__file__)}:\d+", "mine.py", text) for text in caplog.messages]
    assert written == (
        "Statistics writer my:Broken raised in write: ConnectionError: no network (at mine.py, in write). "
        "It receives no more statistics; training continues."
    )
    assert closed.startswith("Statistics writer my:Broken raised in close: ValueError: closed before (at mine.py, in ")


@pytest.mark.parametrize(
    ("writer", "message"),
    [
        ({"use": "my_writer:JsonLine"}, "did you mean 'JsonLines'?"),
        ({"use": "no_such_module:Writer"}, "no module named 'no_such_module'"),
        ({"use": "my_stages:ClipReward"}, "my_stages:ClipReward is not a statistics writer: it has no write,"),
        ({"use": "my_env:long_pole"}, "my_env:long_pole: expected a class"),
        ({"use": "my_writer:JsonLines", "with": {"path": 1}}, "unexpected keyword argument 'path'; its parameters"),
    ],
)
def test_mistakes_are_found_without_making_a_writer(writer: Mapping[str, Any], message: str):
    good = {"use": "my_writer:JsonLines"}
    (mistake,) = check_writers(config(good, writer))
    assert str(mistake).startswith("pipeline.statistics_writers.1")
    assert message in str(mistake)


def test_a_constructor_that_raises_is_a_reason_not_to_start(tmp_path: Path):
    writer = {"use": "my_writer:JsonLines", "with": {"file": "no/such/folder/a.jsonl"}}
    with pytest.raises(
        RunError, match=r"pipeline\.statistics_writers\.0: creating my_writer:JsonLines raised FileNotFound"
    ):
        make_writers(config(writer), tmp_path)
