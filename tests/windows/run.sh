#!/bin/sh
# Runs Windows' Python, under Wine, in the folder that setup.sh built: run.sh FOLDER ARGUMENTS OF PYTHON…
# There this checkout is C:\headrace, which is the working folder. VENV=1 starts Python by a virtual environment's launcher.
# All of it has namespaces of its own, so neither a process nor a mount outlives this script, whatever hangs or stays behind.
set -eu
[ -e "$1/.ready" ] || { echo "$1 is not ready: run tests/windows/setup.sh $1" >&2; exit 2; }
home=$(cd "$1" && pwd -P)
checkout=$(cd "$(dirname "$0")/../.." && pwd -P)
shift
[ -z "${VENV:-}" ] && exe='C:\py\python.exe' || exe='C:\venv\Scripts\python.exe'
exec flock "$home/lock" unshare --mount --pid --fork --kill-child sh -euc '
    home=$1 checkout=$2 debian=$1/debian
    mount --make-rprivate /
    mount -t proc proc "$debian/proc"
    mount --rbind /dev "$debian/dev"
    mount --rbind /sys "$debian/sys"
    mount -t tmpfs tmpfs "$debian/tmp"
    mount --bind "$home" "$debian/win"
    mount --bind "$checkout" "$debian/checkout"
    shift 2
    cd /
    # PYTHONPATH: the checkout is not installed. KMP_AFFINITY: the OpenMP of torch asks for what Wine lacks.
    chroot "$debian" env -u PYTHONDONTWRITEBYTECODE HOME=/root XDG_RUNTIME_DIR=/tmp \
        WINEPREFIX=/win/prefix WINEDEBUG="${WINEDEBUG:--all}" KMP_AFFINITY=disabled OMP_NUM_THREADS=1 \
        PYTHONPATH="C:\\headrace" PYTHONPYCACHEPREFIX="C:\\work\\pycache" \
        sh -c "cd /win/prefix/drive_c/headrace && wine \"\$@\"" sh "$@" </dev/null
' sh "$home" "$checkout" "$exe" "$@"
