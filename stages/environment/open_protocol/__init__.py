"""Games that speak the open protocol, as an environment group."""
