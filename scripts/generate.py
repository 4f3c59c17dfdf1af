"""Answers prompts by a live cluster: `python scripts/generate.py prompt="What is the capital of France?"`."""

import asyncio
from dataclasses import replace

import numpy as np

from mooncake_jax import launch
from mooncake_jax.config import GenerateSettings
from mooncake_jax.types import Request, SamplingParams


def main(settings: GenerateSettings, run: launch.Run) -> None:
    sampling = SamplingParams(
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        seed=settings.seed,
        stop=tuple(settings.stop),
    )
    live = launch.build(settings, words=True, warm=False)
    requests = [
        launch.question(live, f"prompt {i}", prompt, settings.max_tokens, sampling, chat=settings.chat)
        for i, prompt in enumerate(settings.prompts)
    ]
    asyncio.run(launch.serving(live.cluster, answer_all(live, settings, requests)))


async def answer_all(live: launch.Live, settings: GenerateSettings, requests: list[Request]) -> None:
    with launch.progress() as show:
        show("compiling what the first answer needs", 0, None)
        await launch.answer(live, rehearsal(live, requests[0]), lambda text: None)
    for prompt, request in zip(settings.prompts, requests, strict=True):
        if len(requests) > 1:
            print(f"> {prompt}")
        compiled = live.compilations.seconds
        answer = await launch.answer(live, request, lambda text: print(text, end="", flush=True))
        compiled = live.compilations.seconds - compiled
        print(f"\n[{launch.remark(answer.record)}" + (f" · {compiled:.1f} s of it compiling]" if compiled else "]"))
        if settings.logprobs:
            for token, logprob in zip(answer.tokens, answer.logprobs, strict=True):
                print(f"{logprob:10.4f}  {live.model.words().decode([token], skip_special_tokens=False)!r}")


def rehearsal(live: launch.Live, request: Request) -> Request:
    """A request of random tokens in the same shapes: what it compiles is what `request` needs, what it caches is not."""
    tokens = np.random.default_rng(0).integers(0, live.model.vocab, request.input_tokens, dtype=np.int32)
    sampling = replace(request.sampling, ignore_eos=True, stop=())
    return replace(request, id="rehearsal", tokens=tokens, output_tokens=min(request.output_tokens, 3), sampling=sampling)


if __name__ == "__main__":
    launch.run(main, "generate")
