"""The exhibition: one game on the live page, at its own pace, to watch or take part in."""
