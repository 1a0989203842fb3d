"""Roles of hosts: what runs in an actor, a learner, a replay or an exhibition, wherever the host is."""
