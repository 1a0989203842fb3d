"""Reporting to users: statistics, their writers, the console, the live table, timers."""
