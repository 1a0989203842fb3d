"""The dashboard for Grafana asks for what is exported, and says what it shows in which unit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headrace.pipeline.monitor.api import add_health
from headrace.pipeline.serving.service import PolicyService
from headrace.pipeline.web import Api

DASHBOARD = json.loads((Path(__file__).parents[1] / "docs" / "grafana.json").read_text(encoding="utf-8"))
PANELS = [each for each in DASHBOARD["panels"] if each["type"] != "row"]


async def exported():
    """The names of all metrics, of a run and of a policy server."""
    run: Any = SimpleNamespace(
        state=lambda: {"behaviors": [], "edges": [], "hosts": [], "bottleneck": None},
        trouble=lambda: "",
        history=SimpleNamespace(newest=dict),
    )
    api = Api("", {})
    add_health(api, run)
    metrics: Any = next(route.handler for route in api.routes if route.path == "/metrics")
    texts = [(await metrics(None)).body, PolicyService([], True, 0, lambda: 0.0).metrics.text()]
    for name, kind in re.findall(r"# TYPE (\w+) (\w+)", b"".join(texts).decode()):
        yield f"{name}_bucket" if kind == "histogram" else name


async def test_every_metric_that_it_asks_for_is_exported():
    names = {name async for name in exported()}
    asked = [target["expr"] for panel in PANELS for target in panel["targets"]]
    asked += [each["query"]["query"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]
    assert {name for text in asked for name in re.findall(r"headrace_\w+", text)} <= {
        name for name in names if not name.endswith("_created")
    }
