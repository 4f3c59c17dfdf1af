"""A tiny checkpoint that serves words, and the scripts run as a user would: in this process, or in one of their own."""

import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

ROOT = Path(__file__).parents[2]
FAMILY = ROOT / "tests" / "golden" / "families" / "llama3"
SMALL = (
    "cluster=small",
    "cluster.block_size=4",
    "cluster.engine.page_size=4",
    "cluster.engine.chunk_tokens=8",
    "cluster.engine.layer_group=1",
    "cluster.engine.max_context=48",
    "cluster.engine.max_batch=2",
    "cluster.engine.prefill_pages=24",
    "cluster.engine.decode_pages=24",
)
"""A cluster that compiles in seconds: contexts of up to 48 tokens."""


@dataclass(frozen=True)
class Ended:
    """How a script ended."""

    code: int
    out: str
    err: str

    def sentence(self) -> str:
        """What a script that was asked for something impossible said about it."""
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert self.code == 2, self.err
        assert len(lines) == 1, self.err
        assert "Traceback" not in self.err
        return lines[0].removeprefix("error: ")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of 2 layers, 4 query heads and 2 KV heads with a vocabulary of 128 words."""
    folder = tmp_path_factory.mktemp("tiny") / "checkpoint"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(FAMILY / name, folder / name)
    words = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{i}": i for i in range(3, 128)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Runs scripts/<name>.py with arguments in this process and a folder of its own: quick, for what fails early."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.setattr(sys, "path", list(sys.path))
    for module in ("hydra.core.utils", "hydra._internal.hydra"):
        # To configure logging closes all handlers, and absl's closes the stderr it found, which here is pytest's.
        monkeypatch.setattr(f"{module}.configure_log", lambda *_: None)
    jax.devices()  # from here on their number stands
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "xla"))

    def run(name: str, *arguments: str) -> Ended:
        if name != "fetch":
            arguments = (f"runtime.cpu_devices={jax.config.jax_num_cpu_devices}", *arguments)
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
        capsys.readouterr()
        code = 0
        try:
            runpy.run_path(str(ROOT / "scripts" / f"{name}.py"), run_name="__main__")
        except SystemExit as end:
            code = end.code
        said = capsys.readouterr()
        return Ended(code, said.out, said.err)

    yield run
    jax.config.update("jax_compilation_cache_dir", before)


def run_alone(name: str, folder: Path, *arguments: str) -> Ended:
    """Runs scripts/<name>.py in a process of its own, with `folder` as current folder and cache."""
    ended = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / f"{name}.py"), *arguments],
        cwd=folder,
        env={**os.environ, "MOONCAKE_JAX_CACHE": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)
