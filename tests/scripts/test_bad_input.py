"""What cannot be is said in one sentence, with exit code 2: no traceback, no hang."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from tests.scripts.conftest import SMALL, Ended, run_alone

Script = Callable[..., Ended]


def custom(path: Path) -> tuple[str, ...]:
    return (*SMALL, "model=custom", f"model.path={path}")


def replayed(path: Path) -> tuple[str, ...]:
    """With prompts of a few tokens."""
    return (*custom(path), "workload.scale=0.001953125")


@pytest.fixture
def broken(tmp_path: Path, checkpoint: Path) -> Path:
    """A copy of the checkpoint to break."""
    return Path(shutil.copytree(checkpoint, tmp_path / "broken"))


def trace(tmp_path: Path, *lines: str) -> tuple[str, ...]:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines))
    return ("workload=mooncake", f"workload.path={path}")


# --- checkpoints -----------------------------------------------------------------------------------------------------


def test_a_missing_checkpoint(script: Script, tmp_path: Path):
    assert f"No checkpoint at {tmp_path / 'none'}" in script("replay", *replayed(tmp_path / "none")).sentence()


def test_a_truncated_checkpoint(script: Script, broken: Path):
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100_000])
    assert f"{weights} is no safetensors file, or is cut short" in script("replay", *replayed(broken)).sentence()


def test_a_checkpoint_of_other_shapes_than_its_config(script: Script, broken: Path):
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"intermediate_size": 48}))
    sentence = script("replay", *replayed(broken)).sentence()
    assert "has shape (32, 64); the model's config asks for (48, 64)" in sentence


def test_a_checkpoint_that_lacks_a_tensor(script: Script, broken: Path):
    tensors = load_file(broken / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, broken / "model.safetensors")
    assert "tensor model.norm.weight (for final_norm.scale) is missing" in script("replay", *replayed(broken)).sentence()


def test_an_unknown_model_type(script: Script, broken: Path):
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"model_type": "mamba"}))
    assert "model type 'mamba' is not supported" in script("replay", *replayed(broken)).sentence()


def test_words_for_a_model_without_tokenizer(script: Script, broken: Path):
    (broken / "tokenizer.json").unlink()
    sentence = script("generate", *custom(broken), "prompt=w3").sentence()
    assert sentence == f"prompts in words need a tokenizer, but {broken / 'tokenizer.json'} is missing."


# --- workloads -------------------------------------------------------------------------------------------------------


def test_a_trace_line_that_is_not_json(script: Script, tmp_path: Path):
    good = '{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}'
    assert "trace.jsonl:2: the line is not JSON" in script("replay", *trace(tmp_path, good, "{oops")).sentence()


def test_a_trace_line_that_lacks_a_field(script: Script, tmp_path: Path):
    bad = '{"timestamp": 0, "input_length": 5, "hash_ids": [1]}'
    assert script("replay", *trace(tmp_path, bad)).sentence().endswith("trace.jsonl:1: the field output_length is missing.")


def test_a_trace_whose_every_prompt_is_longer_than_the_cache(script: Script, tmp_path: Path):
    long = json.dumps({"timestamp": 0, "input_length": 5000, "output_length": 1, "hash_ids": list(range(10))})
    sentence = script("replay", *trace(tmp_path, long)).sentence()
    assert "no request of the workload fits the cache of 2048 tokens" in sentence


def test_a_prompt_longer_than_the_cache(script: Script, checkpoint: Path):
    prompt = " ".join(["w3"] * 60)
    sentence = script("generate", *custom(checkpoint), "chat=false", f"prompt={prompt}").sentence()
    assert "has 60 prompt tokens" in sentence
    assert "the cache holds at most 48" in sentence


def test_a_mooncake_workload_without_a_file(script: Script):
    assert (
        script("replay", "workload=mooncake").sentence()
        == "workload.path has no value; add workload.path=... to the command line"
    )


# --- clusters --------------------------------------------------------------------------------------------------------


def test_more_devices_than_there_are(script: Script, checkpoint: Path):
    sentence = script("replay", *replayed(checkpoint), "cluster.decode.count=999").sentence()
    assert "the cluster asks for 1000 devices" in sentence
    assert "raise runtime.cpu_devices" in sentence


def test_a_mesh_that_does_not_divide_the_heads(script: Script, checkpoint: Path):
    sentence = script("replay", *replayed(checkpoint), "cluster.prefill.mesh.tensor=3").sentence()
    assert "has 4 query heads, which tensor=3 does not divide" in sentence


def test_a_policy_that_cannot_be_imported(script: Script):
    sentence = script("replay", "conductor/pairing=custom", "conductor.pairing._target_=nowhere.Policy").sentence()
    assert sentence.startswith("conductor.pairing cannot be made: Error loading 'nowhere.Policy'")


def test_a_policy_that_is_none(script: Script):
    sentence = script(
        "replay", "conductor/pairing=custom", "conductor.pairing._target_=mooncake_jax.sched.AcceptAll"
    ).sentence()
    assert sentence == "conductor.pairing=mooncake_jax.sched.AcceptAll does not have what a PairingPolicy needs: pair"


def test_an_argument_that_a_policy_does_not_take(script: Script):
    assert "unexpected keyword argument 'alpha'" in script("replay", "+conductor.pairing.alpha=1").sentence()


def test_an_argument_that_a_policy_refuses(script: Script):
    sentence = script("replay", "conductor.pairing.balancing_threshold=0.5").sentence()
    assert sentence == "conductor.pairing.balancing_threshold is 0.5; it must be 1 or more"


def test_an_order_of_the_queue_that_only_the_simulator_knows(script: Script):
    sentence = script("replay", "conductor/queue_order=shortest_first").sentence()
    assert sentence == "conductor.queue_order is for the simulator only; a live cluster serves first come, first served"


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("cluster.prefil.count=2", "Could not override 'cluster.prefil.count'"),
        ("cluster.prefill.count=two", "Value 'two' of type 'str' could not be converted to Integer"),
        ("cluster.prefill.count=0", "count, mesh.tensor and mesh.stage must be at least 1"),
        ("cluster.block_size=10", "engine.block_size=10 must be a whole number of pages"),
        ("cluster.engine.block_size=32", "set cluster.block_size alone"),
        ("cluster=none", "there is no cluster/none; choose from demo, paper_8p8d, pipeline, small, vllm_16"),
        ("conductor.pairing=random", "a class is chosen from its group with a slash"),
        ("slo.ttft=0", "both must be more than 0"),
        ("workload.limit=[1", "workload.limit=[1 cannot be read"),
        ("runtime.cpu_devices=999", "start a process for each number"),
        ("tracker.mode=online", "tracker cannot be made"),
    ],
)
def test_settings_that_cannot_be(script: Script, argument: str, sentence: str):
    added = "+" if argument.startswith("tracker.") else ""
    assert sentence in script("replay", added + argument).sentence()


def test_a_prompt_is_needed(script: Script):
    assert script("generate").sentence().startswith("a prompt is needed")


def test_something_to_fetch_is_needed(script: Script):
    assert script("fetch").sentence().startswith("nothing to fetch; add model=smollm2_135m or trace=NAME")


def test_a_trace_that_nobody_published(script: Script):
    assert "There is no trace 'mine' to fetch" in script("fetch", "trace=mine").sentence()


# --- a process of its own --------------------------------------------------------------------------------------------


def test_a_process_ends_with_2_and_one_sentence(tmp_path: Path):
    ended = run_alone("replay", tmp_path, *trace(tmp_path, "{oops"))
    assert "trace.jsonl:1: the line is not JSON" in ended.sentence()
    assert len(ended.err.splitlines()) == 1
    assert ended.out == ""
