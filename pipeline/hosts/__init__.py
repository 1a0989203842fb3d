"""Hosts by place: in main's event loop, in separate processes, in actors of Ray; how they start, join and end."""
