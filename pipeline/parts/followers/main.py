"""Followers in main: a learner that has lost a follower is ended and replaced."""

from __future__ import annotations

from headrace.pipeline.control.messages import FollowerLost
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.main.run_part import RunPart


class FollowersPart(RunPart):
    """Ends learners that have lost a follower."""

    receives = (FollowerLost,)

    def receive(self, host: HostHandle, message: FollowerLost) -> None:
        """End the learner, which has not reported a failure, so that another may replace it."""
        self.run.end_host(host, f"was ended, because {message.how}")
