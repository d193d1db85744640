# Functions shared by the scripts, which source it from anywhere.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# A script checks its words before it installs or builds anything, with help_if_asked and known_words, or, where Python parses
# them, with checked_by.
#
# The head comment is the script's help: prints that and ends, if one of the words is --help or -h.
help_if_asked() {
  local word
  for word in "$@"; do
    case $word in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "scripts/${0##*/}"; exit 0 ;; esac
  done
}
unknown() { die "unknown $1; known: $2, and --help" 2; }
# known_words LIST WORD...: ends with exit status 2 if a word is not in the list.
known_words() {
  local known=$1 word
  shift
  for word in "$@"; do
    case " $known " in *" $word "*) ;; *) unknown "$word" "${known:-no words}" ;; esac
  done
}
# checked_by COMMAND...: ends with the exit status of a command that fails, which has named what is wrong. A command that has
# printed something has printed its help: that ends the script, too.
checked_by() {
  local said
  said=$("$@") || exit
  [ -z "$said" ] || { printf '%s\n' "$said"; exit 0; }
}
say() { printf '== %s\n' "$*"; }
die() {
  printf '%s: %s\n' "${0##*/}" "$1" >&2
  exit "${2:-1}"
}

has_python_packages() {
  "$1" -c 'import importlib.util as u, sys; sys.exit(not all(u.find_spec(p) for p in ("torch", "numpy", "safetensors")))' \
    >/dev/null 2>&1
}

# Whether this machine can fetch nothing. Then .deps holds the C++ libraries, unpacked, and .deps/env sets the paths that
# compilers, pkg-config and the loader need; pip's tools are python3's own.
offline() { [ -f .deps/env ]; }

# prepare PART...: installs these parts of scripts/setup; offline, finds what is there.
prepare() {
  if offline; then
    # shellcheck source=/dev/null
    source .deps/env
  else
    scripts/setup "$@"
  fi
}

# The user's Python if it has torch, otherwise the one in .venv, which has torch once scripts/setup has installed that.
cairn_python() {
  if offline || [ ! -x .venv/bin/python ] || has_python_packages python3; then
    command -v python3
  else
    printf '%s\n' "$PWD/.venv/bin/python"
  fi
}

# Installs packages into a folder, without touching the user's packages. Returns at once if they are installed.
pip_beside() {
  local folder=$1 stamp=$1/cairn-setup
  shift
  [ "$(cat "$stamp" 2>/dev/null)" != "$*" ] || return 0
  # Tests ask no name server, and some of them run scripts that install.
  env -u RES_OPTIONS "$(cairn_python)" -m pip install -q --disable-pip-version-check --upgrade --target "$folder" "$@" || return 1
  printf '%s\n' "$*" > "$stamp"
}

# Runs pip's command on this package. It is compiled in build/release with that preset's options, so that the library is
# compiled once for the tests and the package.
pip_as_release() {
  local tools=build/python/tools
  if command -v ccache >/dev/null; then
    local -x CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER:-ccache}
  fi
  offline || pip_beside $tools scikit-build-core pybind11 || return 1
  local unity  # A folder that is there stays as it is.
  unity=$(sed -n 's/^CAIRN_UNITY:BOOL=//p' build/release/CMakeCache.txt 2>/dev/null) || unity=${CAIRN_UNITY:-ON}
  PYTHONPATH=$tools "$(cairn_python)" -m pip "$@" -q --disable-pip-version-check --no-deps --no-build-isolation \
    -C build-dir=build/release -C cmake.args=--preset=release -C cmake.build-type=RelWithDebInfo \
    -C cmake.define.CAIRN_BUILD_TESTS=ON -C cmake.define.CAIRN_BUILD_BENCH=ON -C build.targets="_core;cairn_cli" -C cmake.define.CAIRN_UNITY="$unity" .
}

# Tools that test and lint the Python package.
python_tools=build/python/test-tools
python_test_tools() { pip_beside $python_tools pytest pytest-xdist tqdm mypy ruff packaging typing-extensions fsspec PyYAML prometheus-client; }

# Tools that draw the figures, and numpy, where torch has not brought it.
figure_tools() {
  "$(cairn_python)" -c 'import numpy' 2>/dev/null ||
    "$(cairn_python)" -m pip install -q --disable-pip-version-check numpy || return 1
  pip_beside build/python/figure-tools --no-deps matplotlib==3.11.2 contourpy cycler fonttools kiwisolver packaging \
    pillow==13.0.0 pyparsing python-dateutil six
}
