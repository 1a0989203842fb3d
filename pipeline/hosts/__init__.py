"""Hosts in main's event loop, in separate processes, or in Ray actors: how they start, connect and end."""
