"""Hosts in actors of Ray: on this machine or on the nodes of a cluster."""
