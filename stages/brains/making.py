"""Makes brains by the table of `headrace.config.brains`, and checks before a run that they can be made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.config.brains import BRAIN_KINDS, kind_of
from headrace.stages.brains.protocol import BrainRequest
from headrace.stages.errors import LoadError
from headrace.stages.loading import load_attribute
from headrace.stages.policy.protocol import ActingPolicy


def make_brain(request: BrainRequest) -> ActingPolicy:
    """Make what decides, for the behaviour id of a request.

    Raises:
        StageError: if it can't be made; a LoadError if what the YAML names is not there.
    """
    assert request.spec is not None, "brains are made for somebody"
    brain: ActingPolicy = _maker(request)(request)
    return brain


def check_brain(request: BrainRequest) -> list[LoadError]:
    """Find the mistake for which a brain can't be made, as far as is known without making it."""
    try:
        _maker(request)(request)
    except LoadError as error:
        return [error]
    return []


def _maker(request: BrainRequest) -> Callable[[BrainRequest], Any]:
    kind = BRAIN_KINDS[kind_of(request.use) or ""]
    assert kind.maker is not None, "a trainer's policy is nobody's to make"
    make: Callable[[BrainRequest], Any] = load_attribute(kind.maker, None, request.where)
    return make
