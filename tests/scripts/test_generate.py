"""scripts/generate.py on a tiny model."""

from pathlib import Path

from tests.scripts.conftest import SMALL, run_alone


def test_prompts_of_one_run_share_the_cluster_and_its_cache(tmp_path: Path, checkpoint: Path):
    ended = run_alone(
        "generate",
        tmp_path,
        *SMALL,
        "model=custom",
        f"model.path={checkpoint}",
        "chat=false",
        "max_tokens=6",
        "prompt=w3 w4 w5 w6 w7 w8, w9!",
        "prompt=w3 w4 w5 w6 w7 w8, w9!",
        "logprobs=true",
    )
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    first, second = (line for line in lines if line.startswith("[TTFT"))
    assert "6 tokens (length) · cached 0 of 9 prompt tokens · prefill-0 → decode-0" in first
    assert "cached 8 of 9 prompt tokens (8 device)" in second
    start, answers = lines.index("> w3 w4 w5 w6 w7 w8, w9!"), [line for line in lines if line[:1] == "w"]
    assert start == 0
    assert answers[0] == answers[1]
    assert sum(line.startswith("   ") for line in lines) == 12
    assert not (tmp_path / "outputs").exists()
