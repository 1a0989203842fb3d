"""The number of examples of property tests: `EXAMPLES` at every run, or what `@examples(n)` says; more under `-m slow`."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

EXAMPLES = 20
THOROUGH = 15
"""Under `-m slow` there are this many times as many."""

# The two noisy cores of a test machine say nothing about a property, so time is no criterion.
_patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("quick", _patient, derandomize=True, max_examples=EXAMPLES)
settings.register_profile("thorough", _patient, max_examples=THOROUGH * EXAMPLES)


def examples(number: int) -> settings:
    """Settings for a test that needs `number` examples at every run."""
    return settings(max_examples=number * settings().max_examples // EXAMPLES)
