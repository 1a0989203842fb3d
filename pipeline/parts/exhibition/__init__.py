"""The exhibition: one game on the live page that runs at its own pace, to watch or take part in."""
