"""CUDA graphs without a GPU: operators are recorded and called again on the same tensors, without a call of Python.

What CUDA forbids or ignores is forbidden or ignored here: a capture does nothing; reading a value or making a tensor of
the host's numbers while capturing fails; numbers stay those of the capture, and tensors stay where they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from headrace.stages.trainer.fast.cuda_graphs import CudaGraphs

_WAITS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::is_nonzero", "aten::masked_select"}
_FROM_HOST = {"aten::lift_fresh"}


class RecordedGraphs(CudaGraphs):
    """Stands for `CudaGraphs`; counts what it is asked for."""

    def __init__(self, fails: str = "") -> None:
        self.warm_ups = 0
        self.captures = 0
        self.replays = 0
        self._fails = fails

    def beside(self, function: Any) -> Any:
        self.warm_ups += 1
        return function()

    def capture(self, function: Any) -> Any:
        if self._fails:
            raise RuntimeError(self._fails)
        self.captures += 1
        record = _Record()
        try:
            with record:
                found = function()
        finally:
            record.undo()

        def replay() -> None:
            self.replays += 1
            record.replay()

        return replay, found


class _Record(TorchDispatchMode):
    """Operators in their order, with the tensors that they read and wrote."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and torch's compiler takes a second and a half to import

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self._before: dict[int, tuple[Tensor, Tensor]] = {}
        self._own: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func._schema.name, kwargs or {}
        if name in _WAITS or name in _FROM_HOST:
            raise RuntimeError(f"{name} is not permitted while a graph is captured\nas CUDA would say")
        given = _tensors((args, kwargs))
        if func._schema.is_mutable:
            for tensor in given:
                if _memory(tensor) not in self._own | self._before.keys():
                    whole = tensor.detach().as_strided((tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,), 0)
                    self._before[_memory(tensor)] = whole, whole.clone()
        out = func(*args, **kwargs)
        shared = {_memory(tensor) for tensor in given}
        # Views and what is changed in place lie where their inputs do; what is new is kept, and filled again.
        new = [tensor for tensor in _tensors(out) if _memory(tensor) not in shared]
        self._own |= {_memory(tensor) for tensor in new}
        places = [tensor.detach() for tensor in _tensors(out)] if new else []
        self._calls.append((func, args, kwargs, places))
        return out

    def undo(self) -> None:
        """Make what was changed in place as it was: a capture only notes."""
        for tensor, before in self._before.values():
            tensor.copy_(before)
        self._before.clear()

    def replay(self) -> None:
        """Call the operators again."""
        with torch.no_grad():
            for func, args, kwargs, places in self._calls:
                for place, tensor in zip(places, _tensors(func(*args, **kwargs)) if places else (), strict=True):
                    place.copy_(tensor)
                if not places:
                    func(*args, **kwargs)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, Tensor)]


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
