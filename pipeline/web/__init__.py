"""The basis of Headrace's HTTP servers: a site on one endpoint, protected by guards."""
