"""Small files of strangers that declare huge data or endless work: each is refused by name, within 100 MB and 5 s.

Each file is read in a new process, which reports its time and the growth of its greatest memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from pickle_bombs import BOMBS

from headrace.stages.league.pool import INDEX

READ = """
import importlib, json, resource, sys, time
from pathlib import Path
module, name = sys.argv[1].split(":")
read = getattr(importlib.import_module(module), name)
if "onnx" in module:
    importlib.import_module(module).load_onnxruntime()
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before, begin, said = peak(), time.monotonic(), ""
try:
    read(Path(sys.argv[2]), *sys.argv[3:])
except Exception as error:
    said = f"{type(error).__name__}: {error}"
print(json.dumps([said, time.monotonic() - begin, peak() - before]))
"""


def refused(reader: str, path: Path, *arguments: str) -> str:
    """Read a file in a new process, and return the refusal."""
    command = [sys.executable, "-c", READ, reader, str(path), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    said, seconds, megabytes = json.loads(done.stdout.splitlines()[-1])
    assert megabytes < 100, said
    assert seconds < 60, said  # five on a quiet machine
    assert path.name in said
    return str(said)


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_a_policy_is_refused(tmp_path, name):
    make, _ = BOMBS[name]
    assert "ValueError" in refused("headrace.pipeline.policies.tensor_file:read_tensors", make(tmp_path / "bomb.pt"))


def saved(path: Path, nodes: list[onnx.NodeProto], **constants: object) -> Path:
    """A model that computes `version_number` from constants and one observation."""
    given = helper.make_tensor_value_info("obs_0", TensorProto.FLOAT, ["batch", 3])
    made = helper.make_tensor_value_info("version_number", TensorProto.FLOAT, None)
    values = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "graph", [given], [made], values)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def largest(of: str) -> onnx.NodeProto:
    return helper.make_node("ReduceMax", [of], ["version_number"], keepdims=0)


def endless(path: Path) -> Path:
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["goes"]), helper.make_node("Identity", ["x"], ["y"])],
        "body",
        [value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("x", TensorProto.FLOAT, [])],
        [value("goes", TensorProto.BOOL, []), value("y", TensorProto.FLOAT, [])],
    )
    loop = helper.make_node("Loop", ["count", "always", "start"], ["version_number"], body=body)
    return saved(path, [loop], count=np.int64(10**15), always=np.bool_(True), start=np.float32(1))


def elsewhere(path: Path) -> Path:
    """A model whose weights are said to be in another file, outside of its folder."""
    model = onnx.load(saved(path, [largest("w")], w=np.zeros(25, np.float32)))
    weights = model.graph.initializer[0]
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="../../../etc/passwd")
    path.write_bytes(model.SerializeToString())
    return path


BILLION = np.array([10**9], np.int64)
MODELS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "constant": (
        lambda path: saved(path, [helper.make_node("ConstantOfShape", ["n"], ["big"]), largest("big")], n=BILLION),
        "needs more than",
    ),
    "spread": (
        lambda path: saved(
            path, [helper.make_node("Expand", ["x", "n"], ["big"]), largest("big")], x=np.ones(1, np.float32), n=BILLION
        ),
        "needs more than",
    ),
    "outer product": (
        lambda path: saved(
            path,
            [helper.make_node("MatMul", ["a", "b"], ["big"]), largest("big")],
            a=np.ones((30_000, 1), np.float32),
            b=np.ones((1, 30_000), np.float32),
        ),
        "needs more than",
    ),
    "endless": (endless, "needs more than"),
    "elsewhere": (elsewhere, "not a model that onnxruntime can run"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_refused(tmp_path, name):
    make, message = MODELS[name]
    path = make(tmp_path / "Ball.onnx")
    assert message in refused("headrace.stages.policy.onnx.runtime:stated_notes", path, "Ball")


@pytest.mark.slow
@pytest.mark.parametrize("text", ["[" * 10_000_000, '{"a":' * 5_000_000, '{"format": 1, "members": [{"number": NaN}]}'])
def test_the_index_of_a_pool_is_refused(tmp_path, text):
    (tmp_path / INDEX).write_text(text, encoding="utf-8")
    said = refused("headrace.pipeline.policies.model_files:members_in", tmp_path)
    assert said.startswith("RunError")


@pytest.mark.slow
@pytest.mark.parametrize("text", ["[" * 10_000_000, '{"behavior": "Ball", "elo": Infinity}'])
def test_the_report_of_a_league_is_refused(tmp_path, text):
    (tmp_path / "Ball").mkdir()
    (tmp_path / "Ball" / "league.json").write_text(text, encoding="utf-8")
    assert "league.json" in refused("headrace.pipeline.reporting.league_files:draw_leagues", tmp_path)
