"""The table of host kinds: where actors and learners can run.

A new kind is one entry here and the class that it names, which starts hosts and makes the queues to and from them
(`headrace.pipeline.hosts.protocol.HostFactory`).
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config.tables import Table


@dataclass(frozen=True, slots=True)
class HostKind:
    """One kind of host."""

    meaning: str
    """For the reference of the YAML."""
    implementation: str
    """`module:Class`, a `HostFactory`; loaded when the first host of this kind is started."""
    in_main: bool = False
    """True if its hosts run in main's event loop: then any queue whose end main can open can be handed on to them,
    and a run whose hosts are all of such kinds can be deterministic. Hosts of other kinds can hand queues to hosts of
    the same kind only; everything else passes through main."""
    on_ray: bool = False
    """True if its hosts can ask for resources, and `pipeline.ray` says where they run."""
    extra: str = ""
    """Name of the package that it needs beyond the usual ones, and of the extra of `headrace` that installs it."""


HOST_KINDS: Table[HostKind] = Table(
    process=HostKind("processes of their own", "headrace.pipeline.hosts.process:ProcessHosts"),
    inline=HostKind("in the main process", "headrace.pipeline.hosts.inline:InlineHosts", in_main=True),
    ray=HostKind(
        "actors of Ray, on this machine or a cluster",
        "headrace.pipeline.hosts.ray.hosts:RayHosts",
        on_ray=True,
        extra="ray",
    ),
)
"""By `kind`."""


def joined_directly(sources: str, sink: str) -> bool:
    """Return True if hosts of one kind can put straight into a queue of a host of another kind."""
    return sources == sink or HOST_KINDS[sink].in_main
