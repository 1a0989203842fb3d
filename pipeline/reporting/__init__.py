"""Reporting to users: statistics and their writers, the console and the live table."""
