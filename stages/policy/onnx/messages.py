"""ONNX's own file format as protobuf messages, made at run time from the few fields that our models use.

So a model can be written without the `onnx` package and its pins of protobuf. Numbers and types are those of ONNX's
`onnx.proto`; fields that are not listed here survive reading and writing as unknown ones. The classes live in a pool of
their own, so the `onnx` package may be imported beside them.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FLOAT, INT64 = 1, 7
"""Element types of tensors (`TensorProto.DataType`)."""
ATTRIBUTE_FLOAT, ATTRIBUTE_INT, ATTRIBUTE_GRAPH, ATTRIBUTE_INTS = 1, 2, 5, 7
"""Kinds of attributes (`AttributeProto.AttributeType`)."""

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
"""`name:number:type` of each field, `*` before the type of a repeated one."""


def _pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(name="onnx.proto", package="onnx", syntax="proto2")
    kinds = descriptor_pb2.FieldDescriptorProto
    for message, fields in _FIELDS.items():
        described = file.message_type.add(name=message)
        for field in fields.split():
            name, number, kind = field.split(":")
            label = kinds.LABEL_REPEATED if kind.startswith("*") else kinds.LABEL_OPTIONAL
            kind = kind.removeprefix("*")
            made = described.field.add(name=name, number=int(number), label=label)
            if kind in _FIELDS:
                made.type, made.type_name = kinds.TYPE_MESSAGE, f".onnx.{kind}"
            else:
                made.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def _classes() -> dict[str, Any]:
    pool = _pool()
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"onnx.{name}")) for name in _FIELDS}


_CLASSES = _classes()
"""All are kept: protobuf before 4.25 crashes if the class of a message within a message was collected."""

ModelProto = _CLASSES["ModelProto"]
