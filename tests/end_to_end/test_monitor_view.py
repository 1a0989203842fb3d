"""`--view`: the page over finished runs."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.request

from run_configs import INLINE, changed, volley
from runs import COMMAND, run_here

from headrace.pipeline.cli import main


def test_finished_runs_are_shown_from_their_folders(tmp_path):
    one = run_here(changed(volley(), INLINE), tmp_path / "results", "one").folder
    shutil.copytree(one, one.with_name("two"))
    line = [sys.executable, str(COMMAND), "--view", "one", str(tmp_path / "results" / "two"), "--monitor=0"]
    with subprocess.Popen(
        [*line, "--results-dir", "results"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            found = re.match(r"one, two: (http://\S+)", said)
            assert found, said

            def read(path: str):
                with urllib.request.urlopen(found[1] + path, timeout=60) as answer:
                    return json.load(answer)

            assert [run["name"] for run in read("api/runs")["runs"]] == ["one", "two"]
            for number in (0, 1):
                (behavior,) = read(f"api/runs/{number}/state")["behaviors"]
                assert (behavior["name"], behavior["trainer"], behavior["step"]) == ("Volley", "ppo", 6000)
                curves = read(f"api/runs/{number}/curves")["curves"]["Volley"]
                assert curves["Losses/Value Loss"]["steps"] == [2000, 4000, 6000]
                assert curves["Self-play/ELO"]["steps"][-1] == 6000  # the first rating needs a game that has ended
                assert read(f"api/runs/{number}/leagues")[0]["cells"]
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_a_folder_without_a_run_is_refused(tmp_path, monkeypatch, in_this_process):
    monkeypatch.chdir(tmp_path)
    said = in_this_process(main, "--view", "none", status=2)
    assert "--view none: no such run: neither none nor results/none is a run folder" in said
