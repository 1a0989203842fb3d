"""Gradient steps that are captured once as CUDA graphs and then replayed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

# A captured step is a CUDA graph: on replay, the GPU repeats its kernels without calling Python, using the addresses
# and host-side numbers from the capture. Everything that changes from step to step, including the learning rate and the
# clip range, must therefore be an input, which is copied into the graph's buffers. Tensors that a step changes in place
# (weights, moments, device-side counts) must keep their addresses.
StepInputs = TypeVar("StepInputs")
Found = TypeVar("Found")

WARM_UP = 3
"""Number of normal steps to take with each input form before capturing it; meanwhile, libraries choose kernels and
allocate memory."""
MOST_FORMS = 8
"""The maximum number of input forms to capture. Each has separate memory, so capturing more would gain nothing."""


class Graphs(Protocol):
    """Captures the work that functions do on a device, for later replay."""

    def beside(self, function: Callable[[], Found]) -> Found:
        """Call a function on the stream that may later capture its work."""
        ...

    def capture(self, function: Callable[[], Found]) -> tuple[Callable[[], None], Found]:
        """Record a function's work on the device without executing it.

        Returns:
            A callable that executes the recorded work, and the function's result, whose tensors each call refills.

        Raises:
            RuntimeError: if the function does something that can't be captured, such as waiting for a result.
        """
        ...


class CudaGraphs:
    """Captures CUDA graphs on a separate stream, as CUDA requires.

    Args:
        device: the GPU.
    """

    def __init__(self, device: str | torch.device) -> None:
        self._device = torch.device(device)
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def beside(self, function: Callable[[], Found]) -> Found:
        """Call a function on the capture stream, for which libraries must allocate a workspace before any capture."""
        present = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(present)
        with torch.cuda.stream(self._stream):
            found = function()
        present.wait_stream(self._stream)
        return found

    def capture(self, function: Callable[[], Found]) -> tuple[Callable[[], None], Found]:
        """See `Graphs.capture`. Other threads may use the GPU during a capture."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            found = function()
        return graph.replay, found


class CapturedStep(Generic[StepInputs, Found]):
    """Captures a step once per input form and then replays it.

    An input form consists of shapes, dtypes, missing tensors and host-side numbers. The first few steps of each form
    run normally, without capture. If a capture fails, that step and all later steps also run normally.

    Args:
        step: the function that takes a step. It must not change host state or draw random numbers, and the next call
            may overwrite the tensors that it returns.
        graphs: captures the step.
        tell: called once with the reason if steps are not captured.
        most: the maximum number of forms to capture; 1 if the step has buffers that a different form would replace.
    """

    def __init__(
        self, step: Callable[[StepInputs], Found], graphs: Graphs, tell: Callable[[str], None], most: int = MOST_FORMS
    ) -> None:
        self._step, self._graphs, self._tell, self._most = step, graphs, tell, most
        self._captures: dict[Any, _Capture[Found]] = {}
        self._met: dict[Any, int] = {}
        self._gave_up = False

    def __call__(self, inputs: StepInputs) -> Found:
        """Take a step. The tensors in the result are valid until the next step."""
        if self._gave_up:
            return self._step(inputs)
        tensors: list[Tensor] = []
        outline = _outline(inputs, tensors)
        form = (outline, tuple((tensor.shape, tensor.dtype, tensor.device) for tensor in tensors))
        capture = self._captures.get(form)
        if capture is None:
            met = self._met[form] = self._met.get(form, 0) + 1
            if len(self._met) > self._most:
                return self._without(
                    inputs, f"minibatches come in more than {self._most} shape{'s' * (self._most > 1)}"
                )
            if met <= WARM_UP:
                return self._graphs.beside(lambda: self._step(inputs))
            try:
                capture = self._captures[form] = self._captured(outline, tensors)
            except RuntimeError as error:
                # Ending the capture raises an exception as well, which would hide the reason.
                reason = error.__context__ if isinstance(error.__context__, RuntimeError) else error
                return self._without(inputs, str(reason).strip().partition("\n")[0] or type(reason).__name__)
        return capture.replay(tensors)

    def _captured(self, outline: Any, tensors: list[Tensor]) -> _Capture[Found]:
        buffers = [tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors]
        inputs = _filled(outline, buffers)
        return _Capture(buffers, *self._graphs.capture(lambda: self._step(inputs)))

    def _without(self, inputs: StepInputs, reason: str) -> Found:
        self._gave_up = True
        self._captures.clear()
        self._met.clear()
        self._tell(reason)
        return self._step(inputs)


class _Capture(Generic[Found]):
    """One captured input form.

    Args:
        buffers: the graph's input tensors.
        again: replays the captured work.
        found: the result, whose tensors each replay refills.
    """

    def __init__(self, buffers: list[Tensor], again: Callable[[], None], found: Found) -> None:
        self._buffers, self._again, self._found = buffers, again, found

    def replay(self, tensors: list[Tensor]) -> Found:
        """Repeat the step with new inputs."""
        torch._foreach_copy_(self._buffers, tensors)
        self._again()
        return self._found


def copied(found: Found) -> Found:
    """Return a copy of a step's result that stays valid after the next step."""
    tensors: list[Tensor] = []
    outline = _outline(found, tensors)
    copies: Found = _filled(outline, [tensor.clone() for tensor in tensors])
    return copies


def _outline(value: Any, tensors: list[Tensor]) -> Any:
    """Copy a nested value (tuples, dataclasses) with indices in place of tensors; add each tensor to the list once."""
    if isinstance(value, Tensor):
        for place, tensor in enumerate(tensors):
            if tensor is value:
                return _TensorAt(place)
        tensors.append(value)
        return _TensorAt(len(tensors) - 1)
    if isinstance(value, tuple):
        return type(value), tuple(_outline(each, tensors) for each in value)
    if is_dataclass(value):
        return type(value), tuple(_outline(getattr(value, each.name), tensors) for each in fields(value))
    return value


def _filled(outline: Any, tensors: list[Tensor]) -> Any:
    """Rebuild the value that an outline describes, with these tensors in place of indices."""
    if isinstance(outline, _TensorAt):
        return tensors[outline]
    if not isinstance(outline, tuple):
        return outline
    kind, parts = outline
    inner = [_filled(part, tensors) for part in parts]
    return tuple(inner) if kind is tuple else kind(*inner)


class _TensorAt(int):
    """An index into a list of tensors."""
