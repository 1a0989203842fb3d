"""Hosts in Ray actors, on this machine or on a cluster's nodes."""
