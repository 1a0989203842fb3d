"""Gradient steps that are captured once as CUDA graphs and then replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

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
            result = function()
        present.wait_stream(self._stream)
        return result

    def capture(self, function: Callable[[], Found]) -> tuple[Callable[[], None], Found]:
        """Record a function's work on the device without executing it. Other threads may use the GPU meanwhile.

        Returns:
            A callable that executes the recorded work, and the function's result, whose tensors each call refills.

        Raises:
            RuntimeError: if the function does something that can't be captured, such as waiting for a result.
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            result = function()
        return graph.replay, result


class CapturedStep(Generic[StepInputs, Found]):
    """Captures a step once per input form and then replays it.

    Inputs and results are tuples and named tuples, nested, of tensors and numbers. An input form consists of shapes,
    dtypes, missing tensors and host-side numbers. The first few steps of each form run normally, without capture. If a
    capture fails, that step and all later steps also run normally.

    Args:
        step: the function that takes a step. It must not change host state or draw random numbers, and the next call
            may overwrite the tensors that it returns.
        graphs: captures the step.
        tell: called once with the reason if steps are not captured.
    """

    def __init__(self, step: Callable[[StepInputs], Found], graphs: CudaGraphs, tell: Callable[[str], None]) -> None:
        self._step, self._graphs, self._tell = step, graphs, tell
        self._captures: dict[Any, tuple[list[Tensor], Callable[[], None], Found]] = {}
        """For each form, the graph's input tensors, what replays it, and the result, whose tensors it refills."""
        self._met: dict[Any, int] = {}
        self._gave_up = False

    def __call__(self, inputs: StepInputs) -> Found:
        """Take a step. The tensors in the result are valid until the next step."""
        if self._gave_up:
            return self._step(inputs)
        leaves = _leaves(inputs)
        given = {id(leaf): leaf for leaf in leaves if isinstance(leaf, Tensor)}  # a tensor may occur several times
        form = tuple((leaf.shape, leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        if form not in self._captures:
            self._met[form] = self._met.get(form, 0) + 1
            if len(self._met) > MOST_FORMS:
                return self._without(inputs, f"minibatches come in more than {MOST_FORMS} shapes")
            if self._met[form] <= WARM_UP:
                return self._graphs.beside(lambda: self._step(inputs))
            buffers = {key: one.clone(memory_format=torch.contiguous_format) for key, one in given.items()}
            buffered = _mapped(inputs, lambda leaf: buffers.get(id(leaf), leaf))
            try:
                captured = self._graphs.capture(lambda: self._step(buffered))
            except RuntimeError as error:
                # Ending the capture raises an exception as well, which would hide the reason.
                reason = error.__context__ if isinstance(error.__context__, RuntimeError) else error
                return self._without(inputs, str(reason).strip().partition("\n")[0] or type(reason).__name__)
            self._captures[form] = list(buffers.values()), *captured
        buffers_of_form, replay, result = self._captures[form]
        torch._foreach_copy_(buffers_of_form, list(given.values()))
        replay()
        return result

    def _without(self, inputs: StepInputs, reason: str) -> Found:
        self._gave_up = True
        self._captures.clear()
        self._met.clear()
        self._tell(reason)
        return self._step(inputs)


def copied(result: Found) -> Found:
    """Return a copy of a step's result that stays valid after the next step."""
    copy: Found = _mapped(result, lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf)
    return copy


def _leaves(value: Any) -> list[Any]:
    """Return everything inside nested tuples that is not itself a tuple."""
    return [leaf for part in value for leaf in _leaves(part)] if isinstance(value, tuple) else [value]


def _mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return nested tuples and named tuples like these, with a function applied to each of the `_leaves`."""
    if not isinstance(value, tuple):
        return function(value)
    parts = [_mapped(part, function) for part in value]
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
