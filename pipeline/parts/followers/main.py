"""Followers as main sees them: a learner that has lost one is ended, and another learner takes its place."""

from __future__ import annotations

from headrace.pipeline.control.messages import FollowerLost
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.main.run_part import RunPart


class FollowersPart(RunPart):
    """Ends learners that can't go on."""

    receives = (FollowerLost,)

    def receive(self, host: HostHandle, message: FollowerLost) -> None:
        """End the learner, which has not said that it has failed, so that another one may take its place."""
        self.run.end_host(host, f"was ended, because {message.how}")
