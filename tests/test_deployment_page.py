"""docs/deployment.md: the commands, paths, ports and time limits of its files are those of the policy server."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess

import pytest
import yaml
from page_code import Block, blocks

from headrace.config.listen import endpoint_of
from headrace.pipeline.command.parser import parse
from headrace.pipeline.serving.http_api import OPEN
from headrace.pipeline.serving.server import DRAIN_S

PAGE = "deployment.md"


def block(language: str) -> Block:
    (found,) = [each for each in blocks(language) if each.page.name == PAGE]
    return found


def served_by(words):
    """The HTTP port of the server that these arguments start, and if other machines may call."""
    args = parse([*words])
    assert args.serve[0].endswith(".onnx")
    assert args.log_format == "json"
    listen, port = endpoint_of(args.listen)
    return port, listen == "all"


def test_the_image_serves_to_other_machines_and_asks_the_server_for_its_health():
    text = block("dockerfile").text.replace("\\\n", "")
    lines = dict(line.split(" ", 1) for line in text.splitlines())
    port, wide = served_by([*json.loads(lines["ENTRYPOINT"])[1:], *json.loads(lines["CMD"])])
    assert wide
    assert lines["EXPOSE"].split() == [str(port), str(port + 1)]
    (checked,) = re.findall(r"http://localhost:(\d+)(/\w+)", lines["HEALTHCHECK"])
    assert checked[0] == str(port)
    assert checked[1] in OPEN


def test_the_manifest_probes_the_servers_paths_and_leaves_time_for_requests_in_flight():
    deployment, service = yaml.safe_load_all(block("yaml").text)
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert served_by(["--serve", *container["args"]]) == (ports["http"], True)
    assert ports["grpc"] == ports["http"] + 1
    assert {port["targetPort"] for port in service["spec"]["ports"]} == ports.keys()
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in OPEN, "needs no token"
        assert container[probe]["httpGet"]["port"] == "http"
    before = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > before + DRAIN_S + 5


def test_the_unit_serves_behind_the_proxy_and_leaves_time_for_requests_in_flight(tmp_path):
    text = block("ini").text
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(text)
    port, wide = served_by(shlex.split(unit["Service"]["ExecStart"])[1:])
    assert not wide
    assert f"proxy_pass http://localhost:{port};" in next(b.text for b in blocks("nginx") if b.page.name == PAGE)
    assert int(unit["Service"]["TimeoutStopSec"]) > DRAIN_S + 5


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_knows_every_setting_of_the_unit(tmp_path):
    path = tmp_path / "headrace.service"
    path.write_text(re.sub("ExecStart=.*", "ExecStart=/bin/true", block("ini").text), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True)
    assert (done.returncode, [line for line in done.stderr.splitlines() if str(path) in line]) == (0, [])
