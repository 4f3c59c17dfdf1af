"""The settings of every script. Frozen dataclasses are the schema; the YAML files of `conf/` select and override.

Code sees the dataclasses only. What a user may replace by a class of their own (policies, Messenger, tracker) is a
`Component`: an import path under `_target_`, and its arguments.
"""

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException, InstantiationException, MissingConfigException, OverrideParseException
from hydra.utils import instantiate
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from yaml import YAMLError

from mooncake_jax.cluster_config import ClusterConfig
from mooncake_jax.errors import UserError
from mooncake_jax.sched import ModelShape, Node
from mooncake_jax.sim.config import SimClusterConfig
from mooncake_jax.types import SLO
from mooncake_jax.workload import WorkloadConfig

Component = dict[str, Any]
"""`{"_target_": "package.module.Class", argument: value, ...}`; arguments may be components."""


@dataclass(frozen=True)
class ModelSource:
    """Which checkpoint."""

    name: str | None = None
    """A model that is downloaded at its first use: one of `models.fetch.MODELS`."""
    path: str | None = None
    """A checkpoint on disk, which goes before `name`: GGUF file, Hugging Face folder, or folder of `models.orbax.save`."""
    shape: ModelShape | None = None
    """Its sizes, which a simulation needs instead of weights."""


@dataclass(frozen=True)
class ClusterSettings(ClusterConfig):
    """`ClusterConfig` with the short name that live and simulated clusters share."""

    block_size: int = 16
    """Tokens a block; `engine.block_size` follows it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.engine.block_size != self.block_size:
            raise UserError(
                f"cluster.block_size={self.block_size} and cluster.engine.block_size={self.engine.block_size} differ; "
                "set cluster.block_size alone"
            )


@dataclass(frozen=True)
class ConductorSettings:
    """The policies; see `mooncake_jax.sched`."""

    pairing: Component = MISSING
    decode_choice: Component = MISSING
    admission: Component = MISSING
    estimator: Component | None = MISSING
    """In a simulation null is the cost model itself: the Conductor knows how long things take."""
    replication: Component = MISSING
    roles: Component = MISSING
    queue_order: Component = MISSING
    """Of every prefill instance; the live engine knows first come, first served only."""


@dataclass(frozen=True)
class RuntimeSettings:
    """The process and its devices."""

    cpu_devices: int = 8
    """Devices that the CPU is made to look like, where JAX runs on the CPU."""

    def __post_init__(self) -> None:
        if self.cpu_devices < 1:
            raise UserError(f"runtime.cpu_devices={self.cpu_devices} must be at least 1")


@dataclass(frozen=True)
class LiveSettings:
    """What every script that runs a live cluster needs."""

    model: ModelSource = field(default_factory=ModelSource)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    conductor: ConductorSettings = field(default_factory=ConductorSettings)
    eviction: Component = MISSING
    """Of every prefill instance's host pool."""
    messenger: Component = MISSING
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)
    slo: SLO = field(default_factory=SLO)


@dataclass(frozen=True)
class ReplaySettings(LiveSettings):
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    tracker: Component = MISSING
    ask: str | None = None
    """A question that the cluster answers in words before the replay."""


@dataclass(frozen=True)
class SimulateSettings:
    model: ModelSource = field(default_factory=ModelSource)
    """Only its `shape` counts."""
    hardware: Node = MISSING
    cost: Component = MISSING
    """How long prefills, decode steps and transfers take: a `sched.HardwareModel`."""
    cluster: SimClusterConfig = field(default_factory=SimClusterConfig)
    conductor: ConductorSettings = field(default_factory=ConductorSettings)
    eviction: Component = MISSING
    """Of every prefill instance's host pool."""
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    slo: SLO = field(default_factory=SLO)
    tracker: Component = MISSING
    window: list[float] | None = field(default_factory=lambda: [0.0, 60.0])
    """timeline.json shows the requests under way between these seconds; null writes none."""
    log_decisions: bool = False
    """Write every decision with all that the Conductor saw to decisions.jsonl, as live runs do."""
    redecide: str | None = None
    """A decisions.jsonl, live or simulated: the Conductor set here decides all of it again, and differences are told."""
    experiment: Component | None = None
    """A published table or figure to make instead of a single run; see conf/experiment."""

    def __post_init__(self) -> None:
        if self.window is not None and not (len(self.window) == 2 and 0 <= self.window[0] < self.window[1]):
            raise UserError(f"window={self.window} must be [start, end] in seconds, 0 <= start < end, or null")


@dataclass(frozen=True)
class GenerateSettings(LiveSettings):
    prompts: list[str] = field(default_factory=list)
    """Answered one after another, so that later ones find the prefixes of earlier ones cached."""
    chat: bool = True
    """Put each prompt into the model's chat template; false continues the plain text."""
    max_tokens: int = 256
    temperature: float = 0.0
    """0 takes the likeliest token."""
    top_k: int = 0
    """Draw from the k likeliest tokens; 0 from all."""
    top_p: float = 1.0
    """Draw from the smallest set of tokens whose probability reaches p."""
    seed: int = 0
    stop: list[str] = field(default_factory=list)
    """Texts that end an answer; they are not part of it."""
    logprobs: bool = False
    """Print every token's log-probability after the answer."""

    def __post_init__(self) -> None:
        if not self.prompts or not all(self.prompts):
            raise UserError('a prompt is needed, such as prompt="What is the capital of France?"')
        if self.max_tokens < 1:
            raise UserError(f"max_tokens={self.max_tokens} must be at least 1")


@dataclass(frozen=True)
class FetchSettings:
    model: ModelSource = field(default_factory=ModelSource)
    trace: str | None = None
    """A published trace: one of `models.fetch.TRACES`."""


@dataclass(frozen=True)
class AblateSettings:
    folder: str = MISSING
    """The folder of a sweep: multirun/DATE/TIME."""
    metrics: list[str] = field(
        default_factory=lambda: ["ttft/mean", "ttft/p90", "tbt/p90", "goodput/rate", "goodput/share", "reuse/share"]
    )
    """Numbers of summary.json, the inner key after a slash."""
    tracker: Component = MISSING
    """Gets every run of the sweep as a run of its own."""

    def __post_init__(self) -> None:
        if not self.metrics:
            raise UserError("metrics is empty; name at least one number of summary.json, such as metrics=[ttft/mean]")


@dataclass(frozen=True)
class ReproduceSettings:
    only: list[str] | None = None
    """Experiments, such as fast25/fig5_scheduling; null makes all of conf/experiment."""
    overrides: list[str] = field(default_factory=list)
    """For every experiment, as on the command line of scripts/simulate.py: workload.limit=500 gives a quick look."""


@dataclass(frozen=True)
class CalibrateSettings:
    fit: str = MISSING
    """Folder of the live run that the simulator is fitted to."""
    predict: str = MISSING
    """Folder of the live run to predict; other requests or another load on the same cluster and machine."""
    tolerance: float = 0.15
    """Error up to which a number counts as predicted."""
    draws: int = 20
    """Simulations, of which the median counts; they differ in how passes and steps scatter."""
    seed: int = 0
    """Of that scatter."""

    def __post_init__(self) -> None:
        if self.draws < 1 or not self.tolerance > 0:
            raise UserError(f"draws={self.draws} must be at least 1 and tolerance={self.tolerance} more than 0")


@dataclass(frozen=True)
class BenchDecodeSettings(LiveSettings):
    batches: list[int] = field(default_factory=lambda: [8, 32])
    """Requests decoded at once."""
    steps: int = 16
    """Decode steps a round."""
    rounds: int = 9
    """The median of so many rounds counts; bare loop and engine take turns, so that a busy machine hits both."""

    def __post_init__(self) -> None:
        if min([*self.batches, self.steps, self.rounds], default=0) < 1 or not self.batches:
            raise UserError(f"batches={self.batches}, steps={self.steps} and rounds={self.rounds} must all be at least 1")


@dataclass(frozen=True)
class BenchOverlapSettings(LiveSettings):
    prompt_tokens: int = 1024
    rounds: int = 5
    """The median of so many requests counts."""

    def __post_init__(self) -> None:
        if min(self.prompt_tokens, self.rounds) < 1:
            raise UserError(f"prompt_tokens={self.prompt_tokens} and rounds={self.rounds} must be at least 1")


@dataclass(frozen=True)
class BenchSimSettings:
    trace: str = "conversation"
    """A published trace by name, or a file."""
    rounds: int = 3
    """The quickest of so many simulations counts."""
    blocks: int = 1_000_000
    """Distinct blocks in the index that the Conductor asks."""
    million: bool = False
    """Also a million generated requests on 100 instances, which takes minutes."""

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.blocks < 64:
            raise UserError(f"rounds={self.rounds} must be at least 1 and blocks={self.blocks} at least 64")


_NOISE = re.compile(
    r"\n\s*(full_key|reference_type|object_type)[:=].*"
    r"|\n?See https://hydra\.cc\S* for details"
    r"|\nTo append to your config use .*"
)

SCHEMAS = {
    "replay": ReplaySettings,
    "simulate": SimulateSettings,
    "generate": GenerateSettings,
    "fetch": FetchSettings,
    "ablate": AblateSettings,
    "calibrate": CalibrateSettings,
    "reproduce": ReproduceSettings,
    "bench_decode": BenchDecodeSettings,
    "bench_overlap": BenchOverlapSettings,
    "bench_sim": BenchSimSettings,
}
"""Settings by script; a script's YAML file begins its defaults with `<script>_schema`."""


def register() -> None:
    """Makes the schemas known to Hydra."""
    for name, schema in SCHEMAS.items():
        node = OmegaConf.structured(schema)
        _open(node)
        if issubclass(schema, LiveSettings):
            node.cluster.engine.block_size = "${cluster.block_size}"
            node.model.path = MISSING  # a YAML file that leaves it out asks the user for it
        if issubclass(schema, ReplaySettings | SimulateSettings):
            node.workload.path = MISSING
        if issubclass(schema, SimulateSettings):
            node.conductor.estimator = None
        ConfigStore.instance().store(name=f"{name}_schema", node=node)


def _open(node: DictConfig) -> None:
    """Lets overrides fill it, since frozen dataclasses make read-only nodes. Records without a default get empty fields."""
    OmegaConf.set_readonly(node, None)
    if node._is_none():
        return
    for key in node:
        child = node._get_node(key)
        if isinstance(child, DictConfig) and child._is_missing() and is_dataclass(child._metadata.ref_type):
            node[key] = OmegaConf.structured(child._metadata.ref_type)
            child = node._get_node(key)
        if isinstance(child, DictConfig) and not child._is_missing():
            _open(child)


def read(config: DictConfig) -> Any:
    """The dataclass that a composed config is an instance of. Raises UserError for values missing, mistyped or out of range."""
    try:
        return OmegaConf.to_object(config)
    except MissingMandatoryValue as error:
        raise UserError(f"{error.full_key} has no value; add {error.full_key}=... to the command line") from error
    except OmegaConfBaseException as error:
        raise UserError(one_sentence(error)) from error


def from_plain[S](schema: type[S], plain: Mapping[str, Any]) -> S:
    """The dataclass that plain values describe, such as those of a run's config.yaml; what they leave out has its default.

    Raises UserError as `read` does.
    """
    node = OmegaConf.structured(schema)
    _open(node)
    try:
        return read(OmegaConf.merge(node, plain))
    except OmegaConfBaseException as error:
        raise UserError(one_sentence(error)) from error


def load_plain(folder: Path) -> dict[str, Any]:
    """The settings of a run as plain values, from the config.yaml in its folder. Raises UserError if it cannot be read."""
    path = folder / "config.yaml"
    try:
        loaded = OmegaConf.to_container(OmegaConf.load(path))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; give the folder of a run") from error
    except (ValueError, YAMLError) as error:
        raise UserError(f"{path} does not hold the settings of a run: {error}") from error
    if not isinstance(loaded, dict):
        raise UserError(f"{path} does not hold the settings of a run")
    return loaded


def make(component: Component, where: str, protocol: type | None = None) -> Any:
    """The object that a component describes. `where` is its place in the settings, for messages.

    Raises UserError when the path cannot be imported, the arguments do not fit, or the object lacks methods of `protocol`.
    What else goes wrong in a constructor is raised as it is.
    """
    if "_target_" not in component:
        raise UserError(f"{where} is {dict(component)}; it needs an import path in {where}._target_")
    try:
        made = instantiate(component, _convert_="all")
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, UserError):
            raise cause from None
        if cause is None or isinstance(cause, ImportError | AttributeError | TypeError | ValueError):
            raise UserError(f"{where} cannot be made: {one_sentence(cause or error)}") from error
        raise cause from None
    if protocol is not None and not isinstance(made, protocol):
        methods = ", ".join(name for name in vars(protocol) if not name.startswith("_"))
        raise UserError(f"{where}={component['_target_']} does not have what a {protocol.__name__} needs: {methods}")
    return made


def factory(component: Component, where: str, protocol: type | None = None) -> Callable[[], Any]:
    """Makes such an object anew at each call. What is wrong with the component is raised here, as `make` does."""
    first = make(component, where, protocol)
    return lambda: copy.deepcopy(first)


def one_sentence(error: BaseException) -> str:
    """What a many-lined error of Hydra or OmegaConf says, on one line and without what only their authors need."""
    if isinstance(error, MissingConfigException) and error.options is not None:
        return f"there is no {error.missing_cfg_file}; choose from {', '.join(error.options or _experiments())}"
    if isinstance(error, OverrideParseException):
        return f"{error.override} cannot be read ({_essence(error)}); put quotes within quotes around texts: key=\"'text'\""
    text = _essence(error)
    if isinstance(error, HydraException) and isinstance(error.__cause__, OmegaConfBaseException):
        text = f"{text.rstrip('.')}: {_essence(error.__cause__)}"
    if "Cannot assign str to Dict" in text:
        text += "; a class is chosen from its group with a slash, such as conductor/pairing=random"
    if "not in 'SimClusterConfig'" in text:
        text += "; demo, small and pipeline are live clusters: simulate paper_8p8d or vllm_16"
    return text


def _experiments() -> list[str]:
    """Groups within a group have no options of their own, and only experiments have such."""
    folder = Path(__file__).resolve().parents[1] / "conf" / "experiment"
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.glob("*/*.yaml"))


def _essence(error: BaseException) -> str:
    return " ".join(_NOISE.sub("", str(error)).split())


def plain(config: DictConfig) -> dict[str, Any]:
    """A composed config as plain values, interpolations resolved."""
    return OmegaConf.to_container(config, resolve=True)
