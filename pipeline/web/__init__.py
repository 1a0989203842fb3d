"""The base of all our HTTP servers: a site on one endpoint, behind guards."""
