"""Reports to people: statistics, their writers, the console, the live table, timers."""
