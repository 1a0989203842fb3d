"""Links of process hosts: the sockets and shared memory that a host starts with, and how their ends are opened.

A process host starts with several links before its behaviours are known, and main holds their other ends. Each queue to
or from the host uses one link.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from headrace.paths import on_linux
from headrace.queues.ends import Receiver, Sender
from headrace.queues.links import LinkEnd, LinkSpec, make_link
from headrace.queues.shared_queue import SharedReceiver, SharedSender

SPARE_SLABS = 2
"""Number of slabs in addition to the queue's bound, for batches that the consumer holds while it works."""

UNTOUCHED_SLAB = 32 * 2**20
"""Slab size in bytes on systems that allocate memory only when it is touched: large, because it costs only address
space.
"""

COUNTED_SLAB = 16 * 2**20
"""Slab size in bytes on Windows, where all of a link's memory counts as used after its first message."""

RESERVED_SLAB = 2 * 2**20
"""Slab size in bytes for files in the temporary folder, where every byte is allocated immediately, even for unused
links.
"""


def default_slab_bytes(platform: str = sys.platform) -> int:
    """Return the default slab size in bytes."""
    if platform == "win32":
        return COUNTED_SLAB
    return UNTOUCHED_SLAB if on_linux() else RESERVED_SLAB


def trajectory_link(maxlen: int, slab_bytes: int | None) -> LinkSpec:
    """Return the settings of a link for a trajectory queue."""
    return LinkSpec(maxlen, slab_bytes or default_slab_bytes(), SPARE_SLABS)


def policy_link(slab_bytes: int | None) -> LinkSpec:
    """Return the settings of a link for a policy queue, in which a new policy replaces one that is still waiting."""
    return LinkSpec(1, slab_bytes or default_slab_bytes(), SPARE_SLABS, "replace_oldest")


class ProcessEdges:
    """The host's ends of the links that a process host received when it started."""

    def __init__(self, tickets: Mapping[str, dict[str, Any]]) -> None:
        self._ends = {name: LinkEnd.from_ticket(ticket) for name, ticket in tickets.items()}
        self._senders: dict[str, SharedSender[Any]] = {}
        self._receivers: list[SharedReceiver[Any]] = []

    async def open_sender(self, name: str, address: Mapping[str, Any]) -> Sender[Any]:
        """Open the producing end of a queue, over one link."""
        (link,) = address["links"]
        self._senders[name] = await SharedSender.open(name, self._ends.pop(link))
        return self._senders[name]

    async def open_receiver(self, name: str, address: Mapping[str, Any]) -> Receiver[Any]:
        """Open the consuming end of a queue, over one link per producer."""
        ends = [self._ends.pop(link) for link in address["links"]]
        receiver: SharedReceiver[Any] = await SharedReceiver.open(name, ends, address.get("succeeds", False))
        self._receivers.append(receiver)
        return receiver

    def reconnect(self, name: str) -> None:
        """Restart the queue with this name for the consumer that replaces a dead one."""
        if name in self._senders:
            self._senders[name].reconnect()

    async def close(self) -> None:
        """Wait until all items have arrived or their receivers are gone."""
        for sender in self._senders.values():
            sender.close()
        for sender in self._senders.values():
            await sender.wait_closed()

    async def abandon(self) -> None:
        """Close all ends immediately without notice, as if the process had ended."""
        for end in self._ends.values():
            end.close()
        opened: list[SharedSender[Any] | SharedReceiver[Any]] = [*self._senders.values(), *self._receivers]
        for queue_end in opened:
            with suppress(TimeoutError):
                async with asyncio.timeout(0):  # which closes the queue end immediately
                    await queue_end.wait_closed()


@dataclass
class HostLinks:
    """The links of one process host, as seen by main."""

    given_at_start: dict[str, LinkEnd] = field(default_factory=dict)
    """The host's ends, keyed by ticket name; main keeps copies as long as the host may be replaced."""
    peers: dict[str, LinkEnd] = field(default_factory=dict)
    """Main's ends that are not yet in use, keyed by ticket name."""
    taken_over: set[str] = field(default_factory=set)
    """Ticket names of the links taken over from a dead predecessor."""
    closed: bool = False
    """True once main has closed its ends, because the host is gone."""

    @classmethod
    def make(cls, **links: tuple[LinkSpec, int]) -> HostLinks:
        """Create links: a specification and a number for `out` and `line` (from the host) and `into` (to it)."""
        made = cls()
        for direction, (spec, count) in links.items():
            for i in range(count):
                sender, receiver = make_link(spec)
                theirs, ours = (receiver, sender) if direction == "into" else (sender, receiver)
                made.given_at_start[f"{direction}-{i}"], made.peers[f"{direction}-{i}"] = theirs, ours
        return made

    def take(self, direction: str) -> tuple[str, LinkEnd]:
        """Return an unused link: its ticket name in the host, and main's end.

        If the host is gone, no process holds the other end, so the queue ends immediately: a host can end while main
        still handles its last messages.

        Raises:
            LookupError: if all links are in use.
        """
        name = next((n for n in self.peers if n.startswith(direction)), None)
        if name is None:
            raise LookupError("the environment has more behaviours than expected: list them all under `behaviors`")
        end = self.peers.pop(name)
        if self.closed:
            sender, receiver = make_link(end.spec)
            end, other = (sender, receiver) if direction == "into" else (receiver, sender)
            other.close()
        return name, end

    def take_over(self, dead: HostLinks, which: str = "") -> None:
        """Take over a dead host's used and unused links. `which` can restrict this to links in one direction."""
        for taken, left in ((self.given_at_start, dead.given_at_start), (self.peers, dead.peers)):
            for name in [name for name in left if name.startswith(which)]:
                taken[name] = left.pop(name)
                self.taken_over.add(name)

    def rule_out_successor(self) -> None:
        """Close main's copies of the ends of a host that won't be replaced, so that peers notice when the host ends."""
        for end in self.given_at_start.values():
            end.close()
        self.given_at_start.clear()

    def close(self) -> None:
        """Close all ends that main holds, because the host is gone."""
        self.closed = True
        for end in (*self.given_at_start.values(), *self.peers.values()):
            end.close()
