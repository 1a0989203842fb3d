"""What every HTTP server of ours is made of: a site on one endpoint, behind guards."""
