"""scripts/bench_kernels.py on this machine's CPU."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_kernels.py"


def bench(folder, *arguments):
    command = [sys.executable, str(SCRIPT), "--rounds", "2", "--out", str(folder / "out"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=200)


def test_every_row_has_its_time_beside_a_copy_and_a_matrix_product(tmp_path):
    ended = bench(tmp_path, "--only", "decode", "--seconds", "0.1")
    assert ended.returncode == 0, ended.stderr
    found = json.loads((tmp_path / "out" / "bench_kernels.json").read_text())
    assert ended.stdout.splitlines()[-1] == str(tmp_path / "out" / "bench_kernels.json")
    assert found["copy_bytes_per_s"] > 0
    assert found["matmul_flops_per_s"] > 0
    assert [row["implementation"] for row in found["rows"]] == ["ours: xla"] * 2
    for work, row in zip(found["batches"], found["rows"], strict=True):
        size = 1 if work["kv_dtype"] else 4
        kv = 2 * work["seqs"] * work["context"] * work["kv_heads"] * work["dim"] * size
        q_and_out = 2 * work["seqs"] * work["kv_heads"] * work["group"] * work["dim"] * 4
        assert abs(row["bytes_per_s"] * row["seconds"] / (kv + q_and_out) - 1) < 1e-9


def test_a_name_that_no_batch_has_is_refused(tmp_path):
    ended = bench(tmp_path, "--only", "training")
    assert ended.returncode == 1
    assert "no batch is named like 'training': decode 8 x 512" in ended.stderr
    assert not (tmp_path / "out").exists()
