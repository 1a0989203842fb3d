"""Makes the acting policy of a design."""

from __future__ import annotations

from stages.policy.design import PolicyDesign
from stages.policy.numpy_policy import NumpyPolicy
from stages.policy.protocol import ActingPolicy


def make_policy(design: PolicyDesign) -> ActingPolicy:
    """An acting policy; its weights come with the first update. Imports torch only where the design needs it.

    Raises:
        StageError: if the design can't be built: an observation or a network that does not fit.
    """
    if design.plain:
        return NumpyPolicy(design)
    from stages.policy.torch_policy import TorchPolicy

    return TorchPolicy(design)
