"""The base of Headrace's HTTP servers: a site on one endpoint, behind guards."""
