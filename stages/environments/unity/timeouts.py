"""Messages for timeouts: each state of a connection has its own likely cause for Unity's silence."""

from __future__ import annotations

from enum import Enum, auto

from headrace.stages.environments.unity.versions import COMMUNICATION_VERSION, PACKAGE_VERSION


class ConnectionState(Enum):
    """The states of a connection with Unity."""

    STARTING = auto()
    """Not connected yet."""
    GREETED = auto()
    """Connected, without a first request."""
    FIRST_RESET = auto()
    """Reset, without any agent yet."""
    RUNNING = auto()
    """Agents have asked for decisions."""


def describe_timeout(state: ConnectionState, editor: bool, timeout_s: float) -> str:
    """Describe what Unity failed to do within `timeout_s` seconds, and the remedy; follows its name in a sentence."""
    return f"{_LATE[state].format(seconds=f'{timeout_s:g} s')} {_cure(state, editor)} {_MORE_TIME}"


_MORE_TIME = "If it only needs longer, raise --timeout-wait (env_settings.timeout_wait)."
_LATE = {
    ConnectionState.STARTING: "hasn't connected within {seconds}.",
    ConnectionState.GREETED: "has connected, but hasn't asked for its first order within {seconds}.",
    ConnectionState.FIRST_RESET: "is connected, but within {seconds} no agent has asked for a decision.",
    ConnectionState.RUNNING: "hasn't finished its step within {seconds}: "
    "it hangs, or no agent asks for decisions any more.",
}
_NO_AGENT = (
    "Check that the scene has an active agent, with a Decision Requester or a script that calls RequestDecision, and "
    "with Behavior Type 'Default' in its Behavior Parameters."
)


def _cure(state: ConnectionState, editor: bool) -> str:
    if state is ConnectionState.STARTING:
        return (
            "Press Play in the Editor, with a scene that has an agent; one that plays already has to be restarted."
            if editor
            else "It runs, so look into its log: whether it has opened, whether its scene has an agent (without one it "
            "doesn't connect), and whether its package com.unity.ml-agents is 1.0 or newer."
        )
    if state is ConnectionState.GREETED:
        return (
            "Its log says why; most likely it refuses the versions here, which are "
            f"{COMMUNICATION_VERSION} of the protocol and {PACKAGE_VERSION} of the package."
        )
    if state is ConnectionState.FIRST_RESET:
        return _NO_AGENT
    return f"A paused Editor, an endless loop or a dialogue hangs it. {_NO_AGENT}"
