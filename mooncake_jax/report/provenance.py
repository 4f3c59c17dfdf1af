"""Where a run comes from: what someone needs to run it again."""

import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("mooncake_jax", "jax", "jaxlib", "flax", "numpy")
"""Packages whose versions may change a result."""


def provenance(seed: int | None = None, source: Path | None = None) -> dict[str, Any]:
    """Command, seed, git commit and versions, as JSON values; no time of day, so that equal runs give equal files.

    `commit` and `dirty` (uncommitted changes of tracked files) are those of the repository that holds the folder `source`,
    by default this package's; they are None outside a repository or without git.
    """
    folder = source or Path(__file__).parent
    commit = _git(folder, "rev-parse", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {
        "command": shlex.join([Path(sys.executable).name, *sys.argv]),
        "seed": seed,
        "commit": commit,
        "dirty": None if commit is None or changes is None else bool(changes),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
