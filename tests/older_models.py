"""Models of version 2, built as ML-Agents' exporters of the packages 1.x built them.

Constants are initializers that are outputs as well; discrete actions are log-probabilities of all choices, in which
forbidden ones keep 1e-7; a memory works for a single agent at a time.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import onnx
from onnx import TensorProto, helper


class OlderModel:
    """A linear network over all that it observes.

    Args:
        observed: names and shapes of its inputs for observations.
        continuous: number of continuous actions.
        branches: sizes of discrete branches.
        memory: keep what the network gave last, and add it.
        single: tell all actions in the one output `action`.
        last_branch: beside `action`, tell the last branch in `discrete_actions`.
        version: the version that it states.
    """

    def __init__(self, observed, continuous=0, branches=(), memory=False, single=False, last_branch=False, version=2.0):
        self._nodes, self._outputs, self._constants = [], [], []
        self._inputs = [(name, ["batch", *shape]) for name, shape in observed.items()]
        self._width = continuous + sum(branches)
        self._state("version_number", [version])
        self._state("memory_size", [self._width if memory else 0])
        heads = self._heads(observed, memory)
        if single or last_branch:
            self._state("is_continuous_control", [float(continuous > 0)])
            self._state("action_output_shape", [self._width])
        if continuous:
            drawn = self._node("Tanh", [self._part(heads, 0, continuous)])
            self._output("action" if single else "continuous_actions", drawn, continuous)
            self._state("continuous_action_output_shape", [continuous])
        if branches:
            self._inputs.append(("action_masks", ["batch", sum(branches)]))
            ends = [continuous + end for end in accumulate(branches, initial=0)]
            logs = [self._branch(heads, start, end, continuous) for start, end in pairwise(ends)]
            self._output("action" if single or last_branch else "discrete_actions", self._beside(logs), sum(branches))
            if last_branch:
                self._output("discrete_actions", self._node("Identity", [logs[-1]]), branches[-1])
            self._state("discrete_action_output_shape", [sum(branches)])

    def content(self) -> bytes:
        """The file."""
        graph = helper.make_graph(
            self._nodes,
            "graph",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in self._inputs],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in self._outputs],
            self._constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=6).SerializeToString()

    def _heads(self, observed, memory):
        flat = self._beside([self._node("Flatten", [name], axis=1) for name in observed])
        size = sum(int(np.prod(shape)) for shape in observed.values())
        weights = np.random.default_rng(3).normal(0, 2 / size**0.5, (size, self._width))
        heads = self._node("MatMul", [flat, self._constant(weights.astype(np.float32))])
        if not memory:
            return heads
        self._inputs.append(("recurrent_in", ["batch", 1, self._width]))
        before = self._node("Reshape", ["recurrent_in", self._constant(np.array([1, self._width], np.int64))])
        heads = self._node("Add", [heads, before])
        after = self._node("Reshape", [heads, self._constant(np.array([1, 1, self._width], np.int64))])
        self._nodes.append(helper.make_node("Identity", [after], ["recurrent_out"]))
        self._outputs.append(("recurrent_out", [1, 1, self._width]))
        return heads

    def _branch(self, heads, start, end, continuous):
        allowed = self._part("action_masks", start - continuous, end - continuous)
        raw = self._node("Mul", [self._node("Softmax", [self._part(heads, start, end)], axis=1), allowed])
        share = self._node("Div", [raw, self._node("ReduceSum", [raw], axes=[1], keepdims=1)])
        tiny = self._constant(np.array([1e-7], np.float32))
        return self._node(
            "Log", [self._node("Softmax", [self._node("Log", [self._node("Add", [share, tiny])])], axis=1)]
        )

    def _part(self, name, start, end):
        return self._node("Slice", [name], axes=[1], starts=[start], ends=[end])

    def _beside(self, names):
        return self._node("Concat", names, axis=1)

    def _node(self, kind, inputs, **attributes):
        name = f"n{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def _constant(self, array, name=None):
        name = name or f"c{len(self._constants)}"
        self._constants.append(onnx.numpy_helper.from_array(array, name))
        return name

    def _state(self, name, values):
        self._constant(np.array(values, np.float32), name)
        self._outputs.append((name, [len(values)]))

    def _output(self, name, source, width):
        self._nodes.append(helper.make_node("Identity", [source], [name]))
        self._outputs.append((name, ["batch", width]))


def older_model(observed, **how) -> bytes:
    """The file of an `OlderModel`."""
    return OlderModel(observed, **how).content()
