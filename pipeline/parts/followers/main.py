"""Followers in main: ends and replaces a learner that has lost a follower."""

from __future__ import annotations

from headrace.pipeline.control.messages import FollowerLost
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.main.run_part import RunPart


class FollowersPart(RunPart):
    """Ends learners that have lost a follower, so that they are replaced."""

    receives = (FollowerLost,)

    def receive(self, host: HostHandle, message: FollowerLost) -> None:
        """End a learner that has lost a follower, so that a new learner can replace it."""
        self.run.end_host(host, f"was ended, because {message.how}")
