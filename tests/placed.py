"""Warnings and mistakes without the place that they begin with, for tests that are about their words."""

from __future__ import annotations

import re
from collections.abc import Iterable


def without_places(texts: Iterable[str]) -> tuple[str, ...]:
    """Take `file:line: ` away."""
    return tuple(re.sub(r"^\S+\.ya?ml:\d+: ", "", text) for text in texts)
