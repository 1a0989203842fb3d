"""Classes of protobuf messages, made at run time from a compiled description.

Code that protoc generates needs the versions of protobuf and grpcio that it was made with; a descriptor set works with
all. The classes are in a pool of their own, so other packages with the same messages can be imported too.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


# Generated code would pin the versions of protobuf and grpcio (docs/decisions/055).
class ProtoMessages:
    """The messages of a descriptor set.

    Args:
        compiled: the descriptor set.
        package: name of the package that they are in.

    Attributes:
        files: the descriptions in the set.
    """

    def __init__(self, compiled: bytes, package: str) -> None:
        self._package = package
        self._pool = descriptor_pool.DescriptorPool()
        self._classes: list[Any] = []
        """Keeps the classes of nested messages: protobuf before 4.25 crashes after one was garbage collected."""
        self.files = [*descriptor_pb2.FileDescriptorSet.FromString(compiled).file]
        for file in self.files:
            self._pool.Add(file)

    def message(self, name: str) -> Any:
        """Return the class of a message."""
        descriptor = self._pool.FindMessageTypeByName(f"{self._package}.{name}")
        self._keep(descriptor)
        return message_factory.GetMessageClass(descriptor)

    def _keep(self, descriptor: Any) -> None:
        message_class = message_factory.GetMessageClass(descriptor)
        if message_class not in self._classes:
            self._classes.append(message_class)
            for field in descriptor.fields:
                if field.message_type is not None:
                    self._keep(field.message_type)
