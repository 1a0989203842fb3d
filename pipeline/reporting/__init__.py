"""Reporting to users: statistics and their writers, the console, the live table and timers."""
