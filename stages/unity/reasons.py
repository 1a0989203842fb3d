"""Why Unity may be silent, in words that help its user: each stage of a run has its own likely cause."""

from __future__ import annotations

from enum import Enum, auto

from stages.unity.versions import COMMUNICATION_VERSION, PACKAGE_VERSION


class Stage(Enum):
    """How far a connection with Unity has come."""

    STARTING = auto()
    """Not connected yet."""
    GREETED = auto()
    """Connected, and hasn't asked what to do."""
    FIRST_RESET = auto()
    """Told to begin; no agent has been heard of."""
    RUNNING = auto()
    """Agents have asked for decisions."""


def lateness(stage: Stage, editor: bool, timeout_s: float) -> str:
    """Say what Unity failed to do within `timeout_s` seconds, and what to look at; follows its name in a sentence."""
    return f"{_LATE[stage].format(seconds=f'{timeout_s:g} s')} {_cure(stage, editor)} {_MORE_TIME}"


_MORE_TIME = "If it only needs longer, raise --timeout-wait (env_settings.timeout_wait)."
_LATE = {
    Stage.STARTING: "hasn't connected within {seconds}.",
    Stage.GREETED: "has connected, but hasn't asked for its first order within {seconds}.",
    Stage.FIRST_RESET: "is connected, but within {seconds} no agent has asked for a decision.",
    Stage.RUNNING: "hasn't finished its step within {seconds}: it hangs, or no agent asks for decisions any more.",
}
_NO_AGENT = (
    "Look that the scene has an active agent, with a Decision Requester or a script that calls RequestDecision, and "
    "with Behavior Type 'Default' in its Behavior Parameters."
)


def _cure(stage: Stage, editor: bool) -> str:
    if stage is Stage.STARTING:
        return (
            "Press Play in the Editor, with a scene that has an agent; one that plays already has to be started anew."
            if editor
            else "It runs, so look into its log: whether it has opened, whether its scene has an agent (without one it "
            "doesn't connect), and whether its package com.unity.ml-agents is 1.0 or newer."
        )
    if stage is Stage.GREETED:
        return (
            "Its log says why; most likely it refuses the versions here, which are "
            f"{COMMUNICATION_VERSION} of the protocol and {PACKAGE_VERSION} of the package."
        )
    if stage is Stage.FIRST_RESET:
        return _NO_AGENT
    return f"A paused Editor, an endless loop or a dialogue hangs it. {_NO_AGENT}"
