"""Specifications of the links that process hosts are started with."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest
from shared_ends import duplicate
from stream_samples import policy, trajectories

from headrace.pipeline.hosts.links import (
    HostLinks,
    ProcessEdges,
    policy_link,
    trajectory_link,
)
from headrace.queues.shared_queue import SharedReceiver, SharedSender

SLAB = 64 * 1024


def links(outgoing=1, incoming=1):
    return HostLinks.make(out=(trajectory_link(2, SLAB), outgoing), into=(policy_link(SLAB), incoming))


def as_child(host_links):
    """The edges of a host that is in this process; a child would inherit the descriptors, here they are duplicated."""
    tickets = {}
    for name, end in host_links.given_at_start.items():
        inherited = duplicate(end)
        tickets[name] = inherited.ticket(os.getpid())
        inherited.sock.detach()  # it is the child's now
    return ProcessEdges(tickets)


def open_descriptors():
    gc.collect()  # what other tests have left to it may hold some
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_batches_go_from_a_host_to_main_and_policies_back():
    host = links()
    child = as_child(host)
    ticket, end = host.take("out")
    receiver = await SharedReceiver.open("trajectories/Ball", [end])
    sender = await child.open_sender("trajectories/Ball", {"links": [ticket]})
    ticket, end = host.take("into")
    policies_in = await child.open_receiver("policies/Ball", {"links": [ticket]})
    policies_out = await SharedSender.open("policies/Ball", end)
    host.rule_out_successor()
    try:
        await sender.put(trajectories(4))
        batch = await receiver.get()
        np.testing.assert_array_equal(batch.rows["obs_0"], trajectories(4).rows["obs_0"])
        del batch
        await policies_out.put(policy())
        update = await policies_in.get()
        np.testing.assert_array_equal(update.weights, policy().weights)
        del update
    finally:
        for side in (policies_out, receiver, policies_in):
            side.close()
        await child.close()
        await policies_out.wait_closed()
        await receiver.wait_closed()
        await policies_in.wait_closed()
        host.close()


async def test_items_put_by_a_host_arrive_although_it_closes_at_once():
    host = links(incoming=0)
    child = as_child(host)
    ticket, end = host.take("out")
    receiver = await SharedReceiver.open("trajectories/Ball", [end])
    sender = await child.open_sender("trajectories/Ball", {"links": [ticket]})
    host.rule_out_successor()
    for number in range(2):
        await sender.put(trajectories(number))
    await child.close()
    assert [batch.source async for batch in receiver] == [0, 1]
    await receiver.wait_closed()
    host.close()


async def test_queues_of_a_host_that_is_gone_end():
    host = links()
    host.rule_out_successor()
    host.close()
    receiver = await SharedReceiver.open("trajectories/Ball", [host.take("out")[1]])
    sender = await SharedSender.open("policies/Ball", host.take("into")[1])
    assert [batch async for batch in receiver] == []
    sender.close()
    await sender.wait_closed()
    await receiver.wait_closed()


def test_each_link_is_given_away_once_and_the_last_one_says_what_to_do():
    host = links(outgoing=2, incoming=1)
    taken = dict(host.take(direction) for direction in ("out", "out", "into"))
    assert list(taken) == ["out-0", "out-1", "into-0"]
    with pytest.raises(LookupError, match="more behaviours than expected: list them all"):
        host.take("out")
    for end in taken.values():
        end.close()
    host.close()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open descriptors are counted by /proc")
def test_no_descriptor_stays_open():
    before = open_descriptors()
    host = links(outgoing=2, incoming=3)
    taken = [host.take("out")[1], host.take("into")[1]]
    assert open_descriptors() == before + 2 * 2 * 5  # a socket and a piece of memory at either end
    host.rule_out_successor()
    host.close()
    host.close()
    for end in taken:  # whoever takes a link owns it
        end.close()
    assert open_descriptors() == before
