"""Hosts by place: in main's event loop, in processes of their own, in actors of Ray; how they start, join and end."""
