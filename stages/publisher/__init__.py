"""The policy publisher: the stage that sends policies to the actors."""

from headrace.stages.publisher.stage import PolicyPublisher, PublisherPort

__all__ = ["PolicyPublisher", "PublisherPort"]
