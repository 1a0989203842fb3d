"""docs/platforms.md lists every branch on the system and every call that not all systems have, with its file."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.paths import PARTS

ROOT = Path(__file__).parents[1]
BRANCH = r"sys\.platform|os\.name\b|on_linux\(\)"
CALLS = (
    r"memfd_create|posix_fallocate|/dev/shm|/proc\b|pidfd_open|pidfd_send_signal|prctl|mallopt|sched_getaffinity|os\.sysconf"
    r"|pass_fds|send_fds|fromshare|tagname|AF_UNIX|killpg|start_new_session|creationflags|getppid|siginterrupt|pthread_kill"
    r"|faulthandler\.register|add_signal_handler|SIGHUP|SIGURG|SIGBREAK|SO_RCVLOWAT|SO_RCVTIMEO|SO_REUSEADDR|O_DIRECTORY"
    r"|getrlimit|msvcrt|SelectorEventLoop|os\.fork|termios|fcntl"
)


def test_the_page_lists_every_branch_and_every_call_of_one_system():
    page = (ROOT / "docs" / "platforms.md").read_text(encoding="utf-8").partition("\n## Each branch")[2]
    rows = [set(re.findall(r"`([^`]+)`", line)) for line in page.splitlines() if line.startswith("|")]
    assert len(rows) > 10
    missing = []
    for part in ("headrace", *PARTS):
        for path in sorted((ROOT / part).glob("*.py" if part == "headrace" else "**/*.py")):
            name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
            listed = set().union(*(row for row in rows if name in row))
            calls = set(re.findall(CALLS, text)) - listed
            if calls or (re.search(BRANCH, text) and not listed):
                missing.append(f"{name}: {', '.join(sorted(calls)) or 'a branch'}")
    assert not missing, "\n".join(missing)
