"""The exhibition: one game on the live page that runs at its own pace, for viewers to watch or join."""
