"""How long the live page takes for the curves of a long run, in headless Chromium: reading, and drawing all at once.

    python benchmarks/page_drawing.py --hours 8

The run is simulated: a summary of 40 statistics every other second goes through the server's own history, which keeps
a bounded number of points. The page is the one that users get, over HTTP on loopback. All 40 curves are drawn, though
the page draws only those in view. It needs Debian's `chromium` and `chromium-driver`, and selenium.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from browsers import opened_browser

from headrace.config.load import load_config
from headrace.pipeline.monitor.api import page_routes, run_routes
from headrace.pipeline.monitor.live_run import LiveRun, LogTail
from headrace.pipeline.monitor.server import PageServer
from headrace.pipeline.reporting.history import History
from headrace.pipeline.web.site import SiteOptions

ROOT = Path(__file__).resolve().parent.parent
EVERY_S = 2.0
CURVES = 40
DRAW = """
const done = arguments[arguments.length - 1];
(async () => {
  const { Curves } = await import("/curves.js");
  const asked = performance.now();
  const { curves } = await (await fetch("/api/runs/live/curves")).json();
  const read = performance.now();
  const element = document.createElement("div"), tools = document.createElement("div");
  document.body.prepend(tools, element);
  const drawn = new Curves(element, tools, () => {});
  drawn.replace(curves);
  for (const chart of drawn.charts.values()) chart.show(true);
  await new Promise((resolve) => queueMicrotask(resolve));
  document.body.getBoundingClientRect();
  const ended = performance.now();
  const counts = Object.values(curves.Ball).map((curve) => curve.steps.length);
  const canvases = element.querySelectorAll("canvas").length;
  tools.remove(); element.remove();
  done([read - asked, ended - read, canvases, Math.max(...counts)]);
})();
"""


def simulated(hours: float) -> LiveRun:
    """A run with the curves of so many hours."""
    history = History()
    for number in range(int(3600 * hours / EVERY_S)):
        for curve in range(CURVES):
            value = math.sin(number / 500 + curve) + 0.1 * math.sin(number * (curve + 1))
            history.add("Ball", f"Losses/{curve}", (1000 * number, EVERY_S * number, value))
    return LiveRun("simulated", load_config(ROOT / "config/examples/volley.yaml"), history, LogTail())


def main() -> None:
    """Print the times of each round, and their medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    run = simulated(asked.hours)
    routes = [*page_routes(), *run_routes({"live": run}, {"control": False})]
    server = PageServer(routes, SiteOptions("127.0.0.1:0"), lambda: None)
    server.start()
    found = []
    try:
        with opened_browser() as browser:
            browser.get(server.url)
            for number in range(asked.rounds):
                read, drew, canvases, points = browser.execute_async_script(DRAW)
                found.append((read, drew))
                print(f"{number}: {canvases} curves of {points} points: read in {read:.0f} ms, drawn in {drew:.0f} ms")
    finally:
        server.stop()
    print(f"medians: read {median(r for r, _ in found):.0f} ms, drawn {median(d for _, d in found):.0f} ms")


if __name__ == "__main__":
    main()
