# Functions shared by the scripts, which source it from anywhere.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

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

# Installs what building and testing need; offline, finds what is there.
prepare() {
  if offline; then
    # shellcheck source=/dev/null
    source .deps/env
  else
    scripts/setup "$@"
  fi
}

# A Python with torch: the user's if it has all packages, otherwise the one in .venv that scripts/setup made.
cairn_python() {
  if offline || has_python_packages python3; then
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
  local unity=()
  [ -f build/release/CMakeCache.txt ] || unity=(-C cmake.define.CAIRN_UNITY="${CAIRN_UNITY:-OFF}")
  PYTHONPATH=$tools "$(cairn_python)" -m pip "$@" -q --disable-pip-version-check --no-deps --no-build-isolation \
    -C build-dir=build/release -C cmake.args=--preset=release -C cmake.build-type=RelWithDebInfo \
    -C cmake.define.CAIRN_BUILD_TESTS=ON -C cmake.define.CAIRN_BUILD_BENCH=ON -C build.targets="_core;cairn_cli" "${unity[@]}" .
}

# Tools that test and lint the Python package.
python_tools=build/python/test-tools
python_test_tools() { pip_beside $python_tools pytest pytest-xdist tqdm mypy ruff packaging typing-extensions fsspec PyYAML; }

# Tools that draw the figures; numpy comes with torch.
figure_tools() {
  pip_beside build/python/figure-tools --no-deps matplotlib==3.11.2 contourpy cycler fonttools kiwisolver packaging \
    pillow==13.0.0 pyparsing python-dateutil six
}
