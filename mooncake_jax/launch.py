"""What the scripts share: from the command line to settings, from settings to a live cluster that is ready to serve.

What needs JAX is imported inside functions, so that a mistake on the command line is answered at once.
"""

import asyncio
import gc
import itertools
import math
import os
import re
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from mooncake_jax.config import (
    ConductorSettings,
    LiveSettings,
    ModelSource,
    RuntimeSettings,
    factory,
    make,
    one_sentence,
    plain,
    read,
    register,
)
from mooncake_jax.errors import UserError
from mooncake_jax.kvcache import EvictionPolicy
from mooncake_jax.sched import (
    AdmissionPolicy,
    Conductor,
    Decision,
    DecodePolicy,
    Estimator,
    FirstCome,
    PairingPolicy,
    QueueOrder,
    ReplicationPolicy,
    RolePolicy,
    Sample,
)
from mooncake_jax.types import SLO, Request, RequestRecord, SamplingParams, Span

CONF = Path(__file__).resolve().parents[1] / "conf"

stderr = Console(stderr=True, highlight=False)
"""For progress and remarks; results go to stdout."""
_LINES_S = 5.0


@dataclass(frozen=True)
class Run:
    """One run of a script."""

    folder: Path
    """Where it leaves its results."""
    settings: dict[str, Any]
    """Its resolved settings as plain values."""


def run(main: Callable[[Any, Run], None], script: str) -> None:
    """Calls `main(settings, run)` with the settings of conf/<script>.yaml and the command line; for a sweep, many times.

    Exits with 2 and one sentence on stderr when the user asked for something that cannot be, with 130 on Ctrl-C. Classes
    named by import path may lie in the current folder.
    """
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra then raises its errors, instead of printing them its own way
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    sys.argv[1:] = quote_texts(sys.argv[1:])
    register()
    with _user_errors():
        again = _repeated(script)

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name=script)
    def task(config: DictConfig) -> None:
        with _user_errors():
            folder = Path(HydraConfig.get().runtime.output_dir)
            config = config if again is None else again
            settings = read(config)
            if HydraConfig.get().output_subdir is not None:
                (folder / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True), encoding="utf-8")
            main(settings, Run(folder, plain(config)))
            gc.collect()  # the next run of a sweep needs the memory of this one

    with _user_errors():
        task()


def _repeated(script: str) -> DictConfig | None:
    """The settings of an earlier run, if the command line is `repeat=FOLDER`: its config.yaml, with nothing composed anew."""
    asked = [argument for argument in sys.argv[1:] if argument.startswith("repeat=")]
    if not asked:
        return None
    others = [argument for argument in sys.argv[1:] if argument not in asked and not argument.startswith("hydra.")]
    if others:
        raise UserError(f"repeat=FOLDER repeats a run as it was; leave out {' '.join(others)}")
    path = Path(asked[0].removeprefix("repeat=")) / "config.yaml"
    if not path.is_file():
        raise UserError(f"{path} is not there; repeat=FOLDER needs the folder of a run")
    sys.argv[1:] = [argument for argument in sys.argv[1:] if argument not in asked]
    schema = ConfigStore.instance().load(f"{script}_schema.yaml").node
    settings = OmegaConf.load(path)
    if settings.get("experiment") is not None:  # varies its settings by composing them: by the same overrides
        sys.argv[1:] += list(OmegaConf.load(path.parent / ".hydra" / "overrides.yaml"))
        return None
    return OmegaConf.merge(schema, settings)


@contextmanager
def _user_errors() -> Iterator[None]:
    try:
        yield
    except UserError as error:
        message = str(error)
    except (HydraException, OmegaConfBaseException) as error:
        message = one_sentence(error)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    else:
        return
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def quote_texts(arguments: list[str]) -> list[str]:
    """The command line with `ask=TEXT` and `prompt=TEXT` quoted for Hydra, to which commas and the like mean something.

    All `prompt=TEXT` together become `prompts=[TEXT, ...]`.
    """
    prompts = [argument for argument in arguments if argument.startswith("prompt=")]
    others = [argument for argument in arguments if argument not in prompts]
    quoted = ["ask=" + _quote(one[4:]) if one.startswith("ask=") and one != "ask=null" else one for one in others]
    if prompts:
        quoted.append(f"prompts=[{','.join(_quote(one.removeprefix('prompt=')) for one in prompts)}]")
    return quoted


def _quote(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" and text[0] not in text[1:-1]:
        return text
    text = text.replace("${", r"\${")
    return "'" + re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + found[2].replace("'", r"\'"), text) + "'"


Show = Callable[[str, int, int | None], None]
"""Takes what is being done, steps done, and steps in all (None if unknown)."""


@contextmanager
def progress() -> Iterator[Show]:
    """Shows on stderr how far a work is: a bar on a terminal, elsewhere a line every few seconds."""
    if not stderr.is_terminal:
        yield _lines()
        return
    what = TextColumn("{task.description}", markup=False)
    columns = (SpinnerColumn(), what, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def _lines() -> Show:
    last = -math.inf

    def show(what: str, done: int, total: int | None) -> None:
        nonlocal last
        if time.monotonic() - last > _LINES_S:
            last = time.monotonic()
            print(what if total is None else f"{what} ({done} of {total} done)", file=sys.stderr, flush=True)

    return show


# --- a live cluster --------------------------------------------------------------------------------------------------


def configure_jax(runtime: RuntimeSettings) -> None:
    """Emulated CPU devices, and compiled programs kept between runs. Before the first use of JAX in the process.

    Programs are kept under a hash of all that they depend on, the CPU's features included, so machines may share the folder.
    Raises UserError if the process already has another number of CPU devices.
    """
    import jax

    from mooncake_jax.models.fetch import cache_dir

    if jax.config.jax_num_cpu_devices != runtime.cpu_devices:
        try:
            jax.config.update("jax_num_cpu_devices", runtime.cpu_devices)
        except RuntimeError as error:
            raise UserError(
                f"runtime.cpu_devices={runtime.cpu_devices} cannot be had, since JAX already runs with "
                f"{jax.config.jax_num_cpu_devices} CPU devices; start a process for each number"
            ) from error
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_dir() / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


class Compilations:
    """Counts the programs that XLA compiles from now on, those found in the cache of earlier runs included."""

    def __init__(self) -> None:
        import jax

        self.count, self.seconds = 0, 0.0
        jax.monitoring.register_event_duration_secs_listener(self._hear)

    def _hear(self, event: str, seconds: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            self.count += 1
            self.seconds += seconds


@dataclass(frozen=True)
class Model:
    """A checkpoint, opened but not read, and its tokenizer if it has one that can be read."""

    checkpoint: "mooncake_jax.models.parameters.Checkpoint"
    tokenizer: "mooncake_jax.models.Tokenizer | None"
    why_no_tokenizer: str = ""

    def words(self) -> "mooncake_jax.models.Tokenizer":
        """The tokenizer. Raises UserError without one."""
        if self.tokenizer is None:
            raise UserError(f"prompts in words need a tokenizer, but {self.why_no_tokenizer}")
        return self.tokenizer

    @property
    def vocab(self) -> int:
        """Token ids that stand for something."""
        rows = self.checkpoint.config.vocab
        return rows if self.tokenizer is None else min(rows, self.tokenizer.backend.get_vocab_size())

    @property
    def special_ids(self) -> frozenset[int]:
        return frozenset(() if self.tokenizer is None else self.tokenizer.backend.get_added_tokens_decoder())


def open_model(source: ModelSource) -> Model:
    """Opens a checkpoint, after a download if it is known by name only. Raises UserError as its readers do."""
    from mooncake_jax.models import fetch_model, open_checkpoint, open_tokenizer

    if source.path is None and source.name is None:
        if source.shape is not None:
            raise UserError("of this model only the sizes are known; give its weights by model.path=FOLDER_OR_GGUF_FILE")
        raise UserError("no model is chosen; add model=smollm2_135m, or model=custom model.path=... for one of your own")
    with progress() as show:
        path = source.path or fetch_model(source.name, log=lambda line: show(line, 0, None))
        show(f"opening {path}", 0, None)
        checkpoint = open_checkpoint(path)
        try:
            return Model(checkpoint, open_tokenizer(path))
        except UserError as error:
            return Model(checkpoint, None, str(error))


def make_conductor(policies: ConductorSettings, slo: SLO, exact: Estimator | None = None) -> Conductor:
    """The Conductor with the policies set, live or simulated.

    `exact` knows how long things really take and stands in where no estimator is set, which only a simulation can offer.
    Raises UserError for a policy that cannot be made, and where an estimator is missing.
    """
    estimator = exact
    if policies.estimator is not None:
        estimator = make(policies.estimator, "conductor.estimator", Estimator)
    if estimator is None:
        raise UserError("conductor.estimator is null, but only a simulation can do without; add conductor/estimator=measured")
    return Conductor(
        make(policies.pairing, "conductor.pairing", PairingPolicy),
        make(policies.decode_choice, "conductor.decode_choice", DecodePolicy),
        make(policies.admission, "conductor.admission", AdmissionPolicy),
        estimator,
        slo,
        replication=make(policies.replication, "conductor.replication", ReplicationPolicy),
        roles=make(policies.roles, "conductor.roles", RolePolicy),
    )


@dataclass(frozen=True)
class Live:
    """A cluster with what belongs to it."""

    cluster: "mooncake_jax.runtime.Cluster"
    model: Model
    compilations: Compilations
    busy: list[Span] = field(default_factory=list, repr=False)
    """When which instance worked."""
    samples: list[Sample] = field(default_factory=list, repr=False)
    """How long every pass, step and fetch took."""


def build(
    settings: LiveSettings,
    *,
    words: bool = False,
    warm: bool = True,
    on_decision: Callable[[Decision], None] = lambda decision: None,
) -> Live:
    """A cluster as set, its weights loaded and, if `warm`, every program compiled that greedy requests can need.

    Raises UserError for a model, a mesh or a policy that cannot be, and for a model without tokenizer if `words` are asked for.
    """
    conductor = make_conductor(settings.conductor, settings.slo)
    if not isinstance(make(settings.conductor.queue_order, "conductor.queue_order", QueueOrder), FirstCome):
        raise UserError("conductor.queue_order is for the simulator only; a live cluster serves first come, first served")
    eviction = factory(settings.eviction, "eviction", EvictionPolicy)
    configure_jax(settings.runtime)
    compilations = Compilations()
    model = open_model(settings.model)
    if words:
        model.words()

    from mooncake_jax.models import load_params
    from mooncake_jax.runtime import build_cluster, warm_up
    from mooncake_jax.transfer import Messenger

    busy: list[Span] = []
    samples: list[Sample] = []
    start = time.perf_counter()
    instances = settings.cluster.prefill.count + settings.cluster.decode.count
    loaded = itertools.count()
    with progress() as show:
        cluster = build_cluster(
            settings.cluster,
            model.checkpoint.config,
            partial(load_params, model.checkpoint),
            conductor,
            make(settings.messenger, "messenger", Messenger),
            lambda: time.perf_counter() - start,
            eos_ids=frozenset(model.checkpoint.config.eos_ids) | frozenset(model.tokenizer.eos_ids if model.tokenizer else ()),
            detokenizer=None if model.tokenizer is None else model.tokenizer.stream,
            on_decision=on_decision,
            eviction=eviction,
            busy=busy,
            samples=samples,
            progress=lambda what: show(what, next(loaded), instances),
        )
        if warm:
            warm_up(cluster, sampled=False, progress=lambda what, step, steps: show(what, step - 1, steps))
    return Live(cluster, model, compilations, busy, samples)


async def serving[T](cluster: "mooncake_jax.runtime.Cluster", work: Coroutine[Any, Any, T]) -> T:
    """The result of `work` while the cluster serves. A failure of either ends both and is raised."""
    server, client = asyncio.create_task(cluster.serve()), asyncio.create_task(work)
    try:
        await asyncio.wait((server, client), return_when=asyncio.FIRST_COMPLETED)
        return server.result() if server.done() else client.result()
    finally:
        for task in (server, client):
            task.cancel()
        await asyncio.gather(server, client, return_exceptions=True)


# --- answers in words ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    record: RequestRecord
    tokens: list[int]
    logprobs: list[float]


def question(live: Live, id: str, prompt: str, max_tokens: int, sampling: SamplingParams, *, chat: bool = True) -> Request:
    """A prompt in words as a request. `max_tokens` is cut to what the cache leaves. Raises UserError if it leaves nothing."""
    import numpy as np

    tokenizer = live.model.words()
    if chat and tokenizer.chat_template is None:
        raise UserError(f"{live.cluster.model.name} has no chat template; add chat=false to let it continue the plain prompt")
    ids = tokenizer.apply_chat_template([{"role": "user", "content": prompt}]) if chat else tokenizer.encode(prompt)
    room = live.cluster.config.engine.max_context - len(ids)
    request = Request(id, 0.0, len(ids), max(1, min(max_tokens, room)), tokens=np.asarray(ids, np.int32), sampling=sampling)
    live.cluster.check(request)
    return request


async def answer(live: Live, request: Request, write: Callable[[str], None]) -> Answer:
    """Serves a request now and hands its text to `write` as it comes. Raises UserError if it does not complete."""
    stream = live.cluster.submit(replace(request, arrival=live.cluster.clock()))
    tokens, logprobs = [], []
    async for output in stream:
        tokens.append(output.token)
        logprobs.append(output.logprob)
        write(output.text)
    record = await stream.record()
    if record.status != "completed":
        raise UserError(f"the cluster gave no answer: {record.status}, {record.reason}")
    return Answer(record, tokens, logprobs)


def remark(record: RequestRecord) -> str:
    """One line on an answer: how fast, from which caches, by whom."""
    times = record.token_times
    parts = [f"TTFT {times[0] - record.arrival:.2f} s"]
    if len(times) > 1:
        parts.append(f"{(len(times) - 1) / (times[-1] - times[0]):.1f} tok/s")
    parts.append(f"{record.output_tokens} tokens ({record.reason})")
    tiers = ", ".join(f"{tokens} {tier}" for tier, tokens in record.cached.items() if tokens)
    cached = sum(record.cached.values())
    parts.append(f"cached {cached} of {record.input_tokens} prompt tokens" + (f" ({tiers})" if tiers else ""))
    parts.append(f"prefill-{record.prefill}" + ("" if record.decode is None else f" → decode-{record.decode}"))
    return " · ".join(parts)
