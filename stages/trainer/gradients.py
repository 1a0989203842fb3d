"""How the gradients of a step are found: by autograd or by hand, and captured as a CUDA graph or not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor

from headrace.stages.policy.network.kernels import compiled
from headrace.stages.trainer.protocol import TrainerContext

log = logging.getLogger(__name__)


Arguments = ParamSpec("Arguments")
Measured = TypeVar("Measured", covariant=True)


class Gradients(Protocol[Arguments, Measured]):
    """The seam between an update and the way in which the gradients of its losses are found: by autograd or by hand."""

    def __call__(self, *arguments: Arguments.args, **named: Arguments.kwargs) -> Measured:
        """Set the gradients for the rows of one step, of several replicas for their part; returns what it found."""
        ...


def say_autograd(context: TrainerContext, why: str) -> None:
    """Say that gradients are found by autograd, where another trainer of the kind would find them by hand."""
    log.info("%s: gradients by autograd, which takes longer than by hand: %s.", context.behavior, why)


def say_uncompiled(context: TrainerContext) -> None:
    """Say that NumPy computes what is compiled elsewhere, where that is so."""
    if compiled.kernels is None:
        log.info(
            "%s: small layers are computed by NumPy, which takes longer than what is compiled where Headrace is "
            "installed with a C compiler (gcc).",
            context.behavior,
        )


# A captured step is a CUDA graph that is replayed: the GPU repeats its kernels without a call of Python. A graph
# repeats kernels with the addresses and the numbers of the host that they were captured with. So all that changes from
# step to step is an input, learning rate and clip range included, and is copied into buffers of the graph's own; what a
# step changes in place (weights, moments, counts on the device) stays where it is for good.
StepInputs = TypeVar("StepInputs")
Found = TypeVar("Found")

WARM_UP = 3
"""Steps of each form before it is captured: libraries have then chosen kernels and allocated what they need."""
MOST_FORMS = 8
"""Forms of inputs that are captured, each with memory of its own; with more of them there is nothing to gain."""


class Graphs(Protocol):
    """Captures what functions do on a device."""

    def beside(self, function: Callable[[], Found]) -> Found:
        """Call a function where it can be captured later."""
        ...

    def capture(self, function: Callable[[], Found]) -> tuple[Callable[[], None], Found]:
        """Note what a function does on the device, without doing it.

        Returns:
            What does it, and the function's result, whose tensors are then filled anew each time.

        Raises:
            RuntimeError: if it does what can't be captured, such as waiting for a result.
        """
        ...


class CudaGraphs:
    """Captures on a stream of its own, as CUDA demands it.

    Args:
        device: the GPU.
    """

    def __init__(self, device: str | torch.device) -> None:
        self._device = torch.device(device)
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def beside(self, function: Callable[[], Found]) -> Found:
        """Call a function on that stream: libraries keep workspaces for each stream, and may allocate none later."""
        present = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(present)
        with torch.cuda.stream(self._stream):
            found = function()
        present.wait_stream(self._stream)
        return found

    def capture(self, function: Callable[[], Found]) -> tuple[Callable[[], None], Found]:
        """See the protocol. Other threads may go on using the GPU."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            found = function()
        return graph.replay, found


class CapturedStep(Generic[StepInputs, Found]):
    """A step that is captured once for each form of its input: shapes, dtypes, what is there and numbers of the host.

    The first steps of a form are made as they are, and count. If capturing fails, this and all further steps are.

    Args:
        step: the step; changes nothing of the host, draws nothing, and gives tensors that the next call may overwrite.
        graphs: captures it.
        tell: is told once why steps are not captured, if that is so.
        most: forms that are captured; 1 if the step keeps buffers that another form would replace.
    """

    def __init__(
        self, step: Callable[[StepInputs], Found], graphs: Graphs, tell: Callable[[str], None], most: int = MOST_FORMS
    ) -> None:
        self._step, self._graphs, self._tell, self._most = step, graphs, tell, most
        self._captures: dict[Any, _Capture[Found]] = {}
        self._met: dict[Any, int] = {}
        self._gave_up = False

    def __call__(self, inputs: StepInputs) -> Found:
        """Make a step. Tensors of the result are valid until the next one."""
        if self._gave_up:
            return self._step(inputs)
        tensors: list[Tensor] = []
        outline = _outline(inputs, tensors)
        form = (outline, tuple((tensor.shape, tensor.dtype, tensor.device) for tensor in tensors))
        capture = self._captures.get(form)
        if capture is None:
            met = self._met[form] = self._met.get(form, 0) + 1
            if len(self._met) > self._most:
                return self._without(inputs, f"minibatches have more than {self._most} form{'s' * (self._most > 1)}")
            if met <= WARM_UP:
                return self._graphs.beside(lambda: self._step(inputs))
            try:
                capture = self._captures[form] = self._captured(outline, tensors)
            except RuntimeError as error:
                # What ends the capture complains as well, behind the reason.
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
    """What was captured of one form.

    Args:
        buffers: the graph's inputs.
        again: does what was captured.
        found: its results.
    """

    def __init__(self, buffers: list[Tensor], again: Callable[[], None], found: Found) -> None:
        self._buffers, self._again, self._found = buffers, again, found

    def replay(self, tensors: list[Tensor]) -> Found:
        """Make the step with other inputs."""
        torch._foreach_copy_(self._buffers, tensors)
        self._again()
        return self._found


def copied(found: Found) -> Found:
    """A copy of a step's result, which stays valid."""
    tensors: list[Tensor] = []
    outline = _outline(found, tensors)
    copies: Found = _filled(outline, [tensor.clone() for tensor in tensors])
    return copies


def _outline(value: Any, tensors: list[Tensor]) -> Any:
    """What a value of tensors, tuples and dataclasses is but for its tensors, each of which is listed once."""
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
    """The value of an outline, with these tensors."""
    if isinstance(outline, _TensorAt):
        return tensors[outline]
    if not isinstance(outline, tuple):
        return outline
    kind, parts = outline
    inner = [_filled(part, tensors) for part in parts]
    return tuple(inner) if kind is tuple else kind(*inner)


class _TensorAt(int):
    """The place of a tensor in a list of them."""


def graphs_for(context: TrainerContext) -> Graphs | None:
    """What captures the gradient steps of a behaviour; None, said with the reason, where they can't be."""
    graphs = graphs_on(context.device) if context.cuda_graphs else None
    if graphs is None:
        return None
    network, why = context.settings.network_settings, None
    if context.replicas.size > 1:
        why = "replicas exchange their gradients in each of them"
    elif network.memory is not None:
        why = "minibatches of sequences differ in their number of rows"
    elif network.network is not None:
        why = "a network of your own may do what a graph would not repeat"
    if why is None:
        log.info("%s: gradient steps are captured as CUDA graphs, and replayed.", context.behavior)
        return graphs
    say_uncaptured(context, why)
    return None


def graphs_on(device: str) -> Graphs | None:
    """What captures on a device; None where nothing does."""
    return CudaGraphs(device) if torch.device(device).type == "cuda" else None


def say_uncaptured(context: TrainerContext, why: str) -> None:
    """Say why gradient steps on a GPU are made without graphs, if they could have been asked for."""
    if context.cuda_graphs and torch.device(context.device).type == "cuda":
        log.info("%s: gradient steps are not captured as CUDA graphs: %s.", context.behavior, why)
