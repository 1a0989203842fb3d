"""Unity: its protocol, its side channels, its demonstration files, and its low-level interface for scripts."""
