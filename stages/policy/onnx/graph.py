"""Builds an ONNX graph node by node: values are names, and each operation returns the name of its output.

Operations either have the same meaning in operator sets 9 to 17, or are written for the graph's set. Operations that
Unity's runtimes have trouble with are avoided (`Split`, `Expand`, shapes computed at run time).

ONNX's file format is protobuf messages. This module builds the message classes at run time, from the few fields that
Headrace's models use, so writing a model needs neither the `onnx` package nor its pinned protobuf. Field numbers and
types are those in ONNX's `onnx.proto`; fields that are not listed here are preserved as unknown fields. The classes are
in a separate pool, so the `onnx` package can be imported as well.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2
from numpy.typing import NDArray

from headrace.stages.proto_messages import ProtoMessages

FLOAT, INT64 = 1, 7
"""Element types of tensors (`TensorProto.DataType`)."""
ATTRIBUTE_FLOAT, ATTRIBUTE_INT, ATTRIBUTE_GRAPH, ATTRIBUTE_INTS = 1, 2, 5, 7
"""Attribute types (`AttributeProto.AttributeType`)."""

_FIELDS = {
    "OperatorSetIdProto": "domain:1:string version:2:int64",
    "TensorProto": "dims:1:*int64 data_type:2:int32 name:8:string raw_data:9:bytes",
    "AttributeProto": "name:1:string f:2:float i:3:int64 t:5:TensorProto ints:8:*int64 type:20:int32",
    "NodeProto": "input:1:*string output:2:*string name:3:string op_type:4:string attribute:5:*AttributeProto "
    "domain:7:string",
    "Dimension": "dim_value:1:int64 dim_param:2:string",
    "TensorShapeProto": "dim:1:*Dimension",
    "TensorTypeProto": "elem_type:1:int32 shape:2:TensorShapeProto",
    "TypeProto": "tensor_type:1:TensorTypeProto",
    "ValueInfoProto": "name:1:string type:2:TypeProto",
    "GraphProto": "node:1:*NodeProto name:2:string initializer:5:*TensorProto input:11:*ValueInfoProto "
    "output:12:*ValueInfoProto",
    "StringStringEntryProto": "key:1:string value:2:string",
    "ModelProto": "ir_version:1:int64 producer_name:2:string producer_version:3:string doc_string:6:string "
    "graph:7:GraphProto opset_import:8:*OperatorSetIdProto metadata_props:14:*StringStringEntryProto",
}
"""Fields of each message, as `name:number:type`, with `*` before the type of a repeated field."""


def _messages() -> ProtoMessages:
    file = descriptor_pb2.FileDescriptorProto(name="onnx.proto", package="onnx", syntax="proto2")
    kinds = descriptor_pb2.FieldDescriptorProto
    for message, fields in _FIELDS.items():
        described = file.message_type.add(name=message)
        for field in fields.split():
            name, number, kind = field.split(":")
            label = kinds.LABEL_REPEATED if kind.startswith("*") else kinds.LABEL_OPTIONAL
            kind = kind.removeprefix("*")
            described_field = described.field.add(name=name, number=int(number), label=label)
            if kind in _FIELDS:
                described_field.type, described_field.type_name = kinds.TYPE_MESSAGE, f".onnx.{kind}"
            else:
                described_field.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
    return ProtoMessages(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString(), "onnx")


_MESSAGES = _messages()
ModelProto = _MESSAGES.message("ModelProto")


_SEAL: bytes = ModelProto(metadata_props=[{"key": "headrace_checksum", "value": " " * 16}]).SerializeToString()[:-16]
"""Serialised start of a model's last property, up to its value: the length and CRC-32 of all bytes before it, in
hexadecimal."""


def sealed(model: bytes) -> bytes:
    """Return a model with its checksum appended as the last property."""
    return model + _SEAL + _checksum(model)


def is_damaged(model: bytes) -> bool:
    """Return True if a model was changed after it was sealed.

    A model without a seal comes from another program. If its length differs, a program that does not know the seal has
    rewritten the model; that does not count as damage.
    """
    at = len(model) - 16
    body, seal, stated = model[: at - len(_SEAL)], model[at - len(_SEAL) : at], model[at:]
    return seal == _SEAL and stated[:8] == _checksum(body)[:8] and stated != _checksum(body)


def _checksum(model: bytes) -> bytes:
    return b"%08x%08x" % (len(model), zlib.crc32(model))


Attribute = int | float | Sequence[int]

BATCH = "batch"
"""Name of the only axis with a dynamic size."""
OPSET = 9
"""The operator set that all versions of Unity's runtimes, Barracuda and Sentis, can read."""
_IR_VERSIONS = {9: 4, 15: 8}
"""File format version (`ir_version`) for each operator set."""
_PRODUCER = "headrace"


# torch's exporter changes between versions and needs the `onnx` package (docs/decisions/056).
class Graph:
    """An ONNX model under construction.

    Args:
        name: the graph's name.
        opset: the operator set's version, 9 or 15.
    """

    def __init__(self, name: str, opset: int = OPSET) -> None:
        self.opset = opset
        self._model = ModelProto(ir_version=_IR_VERSIONS[opset], producer_name=_PRODUCER, producer_version=_version())
        self._model.opset_import.add(domain="", version=opset)
        self._graph = self._model.graph
        self._graph.name = name
        self._constants: dict[tuple[bytes, str, tuple[int, ...]], str] = {}
        self._names = 0

    def input(self, name: str, shape: Sequence[int]) -> str:
        """Add a float32 input [batch, *shape]; return its name."""
        _describe(self._graph.input.add(name=name), FLOAT, (BATCH, *shape))
        return name

    def output(self, name: str, value: str, shape: Sequence[int | str], integers: bool = False) -> None:
        """Make a value an output named `name`, of type float32 or int64; a dynamic axis is `BATCH`."""
        self._graph.node.add(op_type="Identity", name=name, input=[value], output=[name])
        _describe(self._graph.output.add(name=name), INT64 if integers else FLOAT, shape)

    def constant(self, array: object) -> str:
        """Add a constant, float32 or (for integers) int64; equal constants are stored once. Return the name."""
        numbers = np.asarray(array)
        kept: NDArray[Any] = np.ascontiguousarray(numbers, np.int64 if numbers.dtype.kind in "iu" else np.float32)
        raw = kept.astype(kept.dtype.newbyteorder("<"), copy=False).tobytes()
        key = (raw, kept.dtype.str, numbers.shape)
        if key not in self._constants:
            name = self._constants[key] = self.name("constant")
            kind = INT64 if kept.dtype == np.int64 else FLOAT
            self._graph.initializer.add(name=name, dims=numbers.shape, data_type=kind, raw_data=raw)
        return self._constants[key]

    def node(self, operation: str, *inputs: str, **attributes: Attribute) -> str:
        """Add an operation with one output; return the output's name."""
        name = self.name(operation)
        node = self._graph.node.add(op_type=operation, name=name, input=inputs, output=[name])
        for key, value in sorted(attributes.items()):
            attribute = node.attribute.add(name=key)
            match value:
                case int():
                    attribute.i, attribute.type = value, ATTRIBUTE_INT
                case float():
                    attribute.f, attribute.type = value, ATTRIBUTE_FLOAT
                case _:
                    attribute.ints.extend(value)
                    attribute.type = ATTRIBUTE_INTS
        return name

    def name(self, what: str) -> str:
        """Return a new, unique name."""
        self._names += 1
        return f"{what}_{self._names}"

    # Operations that take constants, or whose form differs between operator sets. ------------------------------------

    def add(self, x: str, constant: object) -> str:
        """Add a constant to `x`."""
        return self.node("Add", x, self.constant(constant))

    def multiply(self, x: str, constant: object) -> str:
        """Multiply `x` by a constant."""
        return self.node("Mul", x, self.constant(constant))

    def clip(self, x: str, low: float, high: float) -> str:
        """Clamp `x` between two numbers."""
        if self.opset < 11:
            return self.node("Clip", x, min=float(low), max=float(high))
        return self.node("Clip", x, self.constant(np.float32(low)), self.constant(np.float32(high)))

    def columns(self, x: str, start: int, stop: int, width: int) -> str:
        """Return columns `start` to `stop` of `x` [rows, width]."""
        if (start, stop) == (0, width):
            return x
        if self.opset < 10:
            return self.node("Slice", x, axes=[1], starts=[start], ends=[stop])
        return self.node("Slice", x, *(self.constant(np.array([n], np.int64)) for n in (start, stop, 1)))

    def beside(self, parts: Sequence[str], axis: int = 1) -> str:
        """Concatenate values along an axis."""
        return parts[0] if len(parts) == 1 else self.node("Concat", *parts, axis=axis)

    def reshape(self, x: str, *shape: int) -> str:
        """Reshape `x`; -1 stands for the remaining size."""
        return self.node("Reshape", x, self.constant(np.array(shape, np.int64)))

    def splice(self, nodes: Sequence[object]) -> None:
        """Append nodes from another graph, under new names."""
        self._graph.node.extend(nodes)

    def keep(self, tensor: object) -> None:
        """Append an initializer from another graph."""
        self._graph.initializer.add().CopyFrom(tensor)

    def to_bytes(self, about: str = "", notes: Mapping[str, str] | None = None) -> bytes:
        """Return the model as the content of a file.

        Args:
            about: a human-readable line to store in the file.
            notes: machine-readable strings to store in the file, keyed by name.
        """
        self._model.doc_string = about
        for key, value in (notes or {}).items():
            self._model.metadata_props.add(key=key, value=value)
        return sealed(self._model.SerializeToString(deterministic=True))


def _describe(value: object, kind: int, shape: Sequence[int | str]) -> None:
    tensor = value.type.tensor_type  # type: ignore[attr-defined]  # a message that was made at run time
    tensor.elem_type = kind
    for size in shape:
        tensor.shape.dim.add(**{"dim_param" if isinstance(size, str) else "dim_value": size})


def _version() -> str:
    try:
        return metadata.version(_PRODUCER)
    except metadata.PackageNotFoundError:  # running from a checkout that is not installed
        return "unknown"
