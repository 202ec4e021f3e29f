#!/bin/sh
# Make a virtual environment with pip: make_venv.sh PYTHON DIRECTORY
#
# Debian splits venv's pip bootstrap off into python3-venv. Where it is missing and we may install packages, we do;
# elsewhere we say what to do. A directory that was made only halfway is removed, so that the next try starts from nothing.
set -u
python=$1
directory=$2

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "Python 3.11 or later is needed, $python is $("$python" --version 2>&1); name one: make PYTHON=python3.12" >&2
    exit 1
}
"$directory/bin/python" -m pip --version >/dev/null 2>&1 && exit 0
rm -rf "$directory"
"$python" -m venv "$directory" >/dev/null 2>&1 && exit 0
rm -rf "$directory"
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing python3-venv, which this Python lacks" >&2
    apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null &&
        "$python" -m venv "$directory" && exit 0
    rm -rf "$directory"
fi
echo "this Python cannot make a virtual environment with pip; on Debian: apt-get install python3-venv" >&2
exit 1
