"""The open protocol of games without one of their own, as docs/protocol.md describes it."""
