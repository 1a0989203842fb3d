"""The exhibition: one game at its own pace on the live page, for those who watch or take part."""
