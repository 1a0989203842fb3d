"""The open protocol: its messages over TCP or WebSockets, any engine's games as one group, the conformance test."""
