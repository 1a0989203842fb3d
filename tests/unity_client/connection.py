"""The stand-in Unity's line to its trainer: calls, whose responses are the trainer's orders."""

from __future__ import annotations

from typing import Any

import grpc
from unity_client.faults import Closed, Lost, Violation
from unity_client.report import PATIENCE_S

from headrace.stages.environments.engines.unity.messages import CLOSE, EXCHANGE, OK, UnityMessageProto

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # two scenes of one process have connections of their own
)


class Connection:
    """Calls the trainer at `localhost`, as every Unity does."""

    def __init__(self, port: int) -> None:
        self._channel = grpc.insecure_channel(f"localhost:{port}", options=_OPTIONS)
        self._call = self._channel.unary_unary(EXCHANGE)

    def exchange(self, output: Any = None, wait: bool = False) -> Any:
        """Send a `UnityOutputProto`, or none, after the trainer has begun to listen if that is to be waited for.

        The result is the trainer's `UnityInputProto`.

        Raises:
            Closed: if the trainer ends the connection.
            Lost: if there is nobody.
            Violation: if the answer is no answer.
        """
        message = UnityMessageProto()
        message.header.status = OK
        if output is not None:
            message.unity_output.CopyFrom(output)
        answer = UnityMessageProto.FromString(self.raw(message.SerializeToString(), wait))
        if answer.header.status == CLOSE:
            raise Closed("the trainer has closed the connection")
        if answer.header.status != OK:
            raise Violation(f"status {answer.header.status} is neither 200 nor 400")
        if not answer.HasField("unity_input") or answer.HasField("unity_output"):
            raise Violation("an answer has to be a unity_input, and nothing else")
        return answer.unity_input

    def raw(self, request: bytes, wait: bool = False) -> bytes:
        """Send bytes and take bytes."""
        try:
            return bytes(self._call(request, timeout=PATIENCE_S if wait else None, wait_for_ready=wait))
        except grpc.RpcError as error:
            raise Lost(f"{error.code().name}: {error.details()}") from error

    def stop(self) -> None:
        """End the connection from Unity's side."""
        message = UnityMessageProto()
        message.header.status = CLOSE
        self.raw(message.SerializeToString())

    def close(self) -> None:
        self._channel.close()
