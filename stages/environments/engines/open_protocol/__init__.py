"""The open protocol: its messages over TCP or WebSockets, a group of games in any engine, and the conformance test."""
