"""Makes kvcache_simulator.json: what the Mooncake authors' kvcache-simulator hits on the published traces.

Run it in an environment of its own (it compiles a C++ program; a minute):

    python3.12 -m venv env
    env/bin/pip install kvcache-simulator==0.1.3
    env/bin/python tests/golden/make_kvcache_simulator.py FOLDER

FOLDER holds conversation_trace.jsonl and synthetic_trace.jsonl. The tool counts the second half of the requests, and leaves out
budgets that the first half does not fill. LLaMA-3.1-70B in 16 bits takes 160 MiB a block of 512 tokens.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

POLICIES = ("fifo", "lru", "optimal")


def run(trace: Path) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.json"
        command = [sys.executable, "-m", "kvcache_sim", "run", "--trace", str(trace), "--format", "json", "-o", str(output)]
        command += ["--model", "llama-3.1-70b", "--kv-precision", "bf16_fp16", "--block-size", "512", "--no-progress"]
        subprocess.run([*command, "--policies", ",".join(POLICIES)], check=True)
        result = json.loads(output.read_text())
    return {
        "counted_tokens": result["metadata"]["totalMeasuredTokens"],
        "unlimited": result["ceiling"]["hitTokens"],
        "points": [
            {"blocks": point["cacheBlocks"]} | {policy: point["results"][policy]["hitTokens"] for policy in POLICIES}
            for point in result["points"]
        ],
    }


if __name__ == "__main__":
    results = {name: run(Path(sys.argv[1]) / f"{name}_trace.jsonl") for name in ("conversation", "synthetic")}
    Path(__file__).with_name("kvcache_simulator.json").write_text(json.dumps(results, indent=1) + "\n")
