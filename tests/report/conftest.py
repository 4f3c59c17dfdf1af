"""A small run worked out by hand: times in seconds, the run lasts from 10 to 13."""

import pytest

from mooncake_jax.types import RequestRecord, Span, Status, Tier


@pytest.fixture
def slow() -> RequestRecord:
    """TTFT 2, gaps 0.1 0.2 0.1, so TBT 0.2, E2E 2.4, TPOT 0.4/3; computes on prefill-0, decodes on decode-1."""
    return RequestRecord(
        id="slow",
        arrival=10.0,
        status=Status.COMPLETED,
        input_tokens=100,
        output_tokens=4,
        token_times=(12.0, 12.1, 12.3, 12.4),
        cached={Tier.HOST: 30, Tier.PEER: 20},
        split={"queue": 0.5, "fetch": 0.25, "compute": 1.0, "transfer": 0.15, "decode_wait": 0.1},
        prefill=0,
        decode=1,
        finished=12.4,
        reason="length",
        spans=(
            Span("queue", 10.0, 10.5, "prefill-0"),
            Span("fetch", 10.5, 10.75, "prefill-0"),
            Span("compute", 10.75, 11.75, "prefill-0"),
            Span("transfer", 11.25, 11.9, "prefill-0"),
            Span("decode_wait", 11.9, 12.0, "decode-1"),
            Span("decode", 12.0, 12.4, "decode-1"),
        ),
    )


@pytest.fixture
def single() -> RequestRecord:
    """One token only: TTFT = E2E = 0.5, TBT and TPOT 0."""
    return RequestRecord(
        id="single",
        arrival=11.0,
        status=Status.COMPLETED,
        input_tokens=60,
        output_tokens=1,
        token_times=(11.5,),
        cached={Tier.DEVICE: 40},
        split={"queue": 0.1, "compute": 0.4},
        prefill=1,
        finished=11.5,
        reason="stop",
        spans=(Span("queue", 11.0, 11.1, "prefill-1"), Span("compute", 11.1, 11.5, "prefill-1")),
    )


@pytest.fixture
def rejected() -> RequestRecord:
    return RequestRecord("no", 12.0, Status.REJECTED, 500, 0, finished=12.0, reason="predicted TTFT 40 s exceeds 30 s")


@pytest.fixture
def aborted() -> RequestRecord:
    """Got one token, then its client left."""
    return RequestRecord("left", 11.5, Status.ABORTED, 50, 1, token_times=(12.5,), finished=13.0, reason="client left")


@pytest.fixture
def run(slow, single, rejected, aborted) -> list[RequestRecord]:
    """In the order in which they ended, not in that of arrival."""
    return [single, rejected, slow, aborted]
