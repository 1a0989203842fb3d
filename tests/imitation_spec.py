"""The behaviour that made-up experts play."""

from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec

SPEC = BehaviorSpec("Test", (ObservationSpec("vector", (3,)),), ActionSpec(2, (3,)))
