#!/bin/sh
# Checks what must be on the machine before anything of ours can run. One line per missing thing; exit code 2.
# Usage: prerequisites.sh PYTHON
python=${1:-python3}
missing=0

say() {
    echo "missing: $1" >&2
    missing=1
}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    say "Python 3.11 or newer (looked for '$python'; on Debian: apt install python3 python3-venv; or: make PYTHON=/path/to/python3.11)"
elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    say "Python's venv module for '$python' (on Debian: apt install python3-venv)"
fi

javac=javac
[ -n "$JAVA_HOME" ] && javac="$JAVA_HOME/bin/javac"
version=$("$javac" -version 2>&1 | sed -n 's/^javac \([0-9]*\).*/\1/p')
if [ "$version" != 17 ]; then
    say "a JDK 17 (found ${version:-none}; on Debian: apt install openjdk-17-jdk-headless; or set JAVA_HOME to one)"
fi

if ! command -v mvn >/dev/null 2>&1; then
    say "Maven, which fetches the servers (on Debian: apt install maven)"
fi

exit $((missing * 2))
