"""Exhibition: one game at its own pace, for people to watch or play."""
