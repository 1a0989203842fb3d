"""Runs other projects' environment checkers, for advice beyond the checks that a run makes itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

from headrace.stages.errors import describe_error


def words_of(check: Callable[[], Any], checker: str, name: str) -> Iterator[str]:
    """Run a checker and yield its findings.

    Args:
        check: the checker, which raises an error if it finds something.
        checker: the checker's name.
        name: the environment's name.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about rendering and other things that training does not use
        try:
            check()
        except AssertionError as error:
            if str(error):  # a bare assertion has no message
                yield f"{name}: {checker} says: {' '.join(str(error).split())}"
        except Exception as error:
            yield f"{name}: {checker} failed with {describe_error(error)}"
