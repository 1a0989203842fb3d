"""How strictly a Unity takes its trainer's actions: by their order, and every number of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from unity_client.faults import Violation
from unity_client.says import Act, Behavior, Say


def actions_of(
    rl_input: Any, asked: Mapping[str, Sequence[Say]], behaviors: Mapping[str, Behavior]
) -> dict[str, list[Act]]:
    """What each agent that asked for a decision was told to do, in the order in which they asked.

    Raises:
        Violation: for anything that the agents can't do, or that isn't one action for each.
    """
    told = dict(rl_input.agent_actions.items())
    if unasked := {name for name, actions in told.items() if actions.value and not asked.get(name)}:
        raise Violation(f"actions for {sorted(unasked)}, where no agent asked for a decision")
    acts: dict[str, list[Act]] = {}
    for name, says in asked.items():
        actions = told[name].value if name in told else ()
        if len(actions) != len(says):
            raise Violation(f"{name}: {len(actions)} actions for {len(says)} agents")
        acts[name] = [_act(action, say, behaviors[name]) for action, say in zip(actions, says, strict=True)]
    return acts


def check_echo(say: Say, act: Act) -> None:
    """An action has to repeat the first number that its agent sees: so it is this agent's, not another's.

    Raises:
        Violation: if it doesn't.
    """
    seen = say.observations[0][0]
    if act.continuous and abs(act.continuous[0] - seen) > 1e-6:
        raise Violation(f"agent {say.agent} of {say.behavior} saw {seen} and was told {act.continuous[0]}")
    if act.discrete and act.discrete[0] != int(seen > 0):
        raise Violation(f"agent {say.agent} of {say.behavior} saw {seen} and was told to choose {act.discrete[0]}")


def _act(action: Any, say: Say, behavior: Behavior) -> Act:
    act = Act(list(action.continuous_actions), list(action.discrete_actions))
    who = f"agent {say.agent} of {behavior.name}"
    if len(act.continuous) != behavior.continuous or len(act.discrete) != len(behavior.branches):
        raise Violation(
            f"{who}: {len(act.continuous)} continuous and {len(act.discrete)} discrete actions, expected "
            f"{behavior.continuous} and {len(behavior.branches)}"
        )
    if not all(map(math.isfinite, act.continuous)):
        raise Violation(f"{who}: {act.continuous} isn't finite")
    start = 0
    for size, choice in zip(behavior.branches, act.discrete, strict=True):
        if not 0 <= choice < size:
            raise Violation(f"{who}: choice {choice} of {size}")
        if say.mask and say.mask[start + choice]:
            raise Violation(f"{who}: choice {choice} is forbidden")
        start += size
    if list(action.vector_actions_deprecated) != [*act.continuous, *map(float, act.discrete)]:
        raise Violation(f"{who}: the vector for old packages differs from the actions")
    return act
