"""Generated calls over a real socket: whatever is sent, `contracts/openapi.yaml` promises the answer.

For each operation schemathesis makes requests that fit the document and requests that do not. Most of them
name objects that exist. An answer must have a status that the document names (never 5xx: all is up), its
content type, its headers and its schema, and what contradicts the document must be refused.

    FUZZ_SEED=17 pytest tests/contract/test_schemathesis.py        the same calls again
    pytest -m slow tests/contract/test_schemathesis.py             ten times as many, another seed each time
"""

import os
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
import yaml
from hypothesis import HealthCheck, Phase, given, reject, seed, settings
from hypothesis import strategies as st
from pydantic import SecretStr
from schemathesis.core import NotSet
from schemathesis.core.errors import InvalidSchema
from schemathesis.specs.openapi import checks
from tests.conftest import new_database
from tests.contract.scenes import Scene
from tests.serving import Served, settings_for, sherlock

from sherlock.embedded import EmbeddedPostgres

PUBLISHED = Path(__file__).parents[2] / "contracts" / "openapi.yaml"
DOCUMENT: dict[str, Any] = yaml.load(PUBLISHED.read_text("utf-8"), yaml.CSafeLoader)
API = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS = [operation.ok() for operation in API.get_all_operations()]

CALLS = 2_100
CALLS_OF_THE_LONG_RUN = 25_000
SEED = int(os.environ.get("FUZZ_SEED", "20261201"))
ALWAYS_REFUSED = {"cancelResponse"}
"""No response is made in the background."""
SELDOM_FITTING = {"createResponse", "Getinputtokencounts"}
"""Their bodies are so rich that few made at random hold together; the examples are requests that do."""
CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]


def weight(operation: schemathesis.APIOperation) -> int:
    """How much there is to vary, in calls that cost something. With nothing to vary one call is enough."""
    if operation.body or operation.query:
        return 3
    return 0 if not operation.path_parameters else 1 if operation.method == "delete" else 2


def share(operation: schemathesis.APIOperation, calls: int) -> int:
    """How many of `calls` this operation gets."""
    return max(1, round(calls * weight(operation) / sum(map(weight, OPERATIONS))))


def test_the_calls_add_up() -> None:
    assert sum(share(operation, CALLS) for operation in OPERATIONS) >= 2_000


def named(operation: schemathesis.APIOperation) -> str:
    return str(operation.definition.raw["operationId"])


@pytest.fixture(scope="module")
async def database_of_its_own(embedded: EmbeddedPostgres) -> AsyncIterator[str]:
    async with new_database(embedded) as url:
        yield url


@pytest.fixture(scope="module")
def server(database_of_its_own: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    settings = settings_for(
        tmp_path_factory.mktemp("fuzzed"),
        rag_enabled=True,
        postgres_url=SecretStr(database_of_its_own),
        max_file_bytes=100_000,
        sync_timeout_s=1,
    )
    with sherlock(settings) as running:
        running.chat_model.name = "hash"  # as the encoder's: one name that every call takes for a model
        yield running


@pytest.mark.parametrize("operation", OPERATIONS, ids=named)
def test_every_answer_is_a_promised_one(operation: schemathesis.APIOperation, server: Served) -> None:
    call_at_random(operation, server, share(operation, CALLS), SEED)


@pytest.mark.parametrize("operation", OPERATIONS, ids=named)
def test_the_examples_are_requests_that_work(operation: schemathesis.APIOperation, server: Served) -> None:
    body = operation.definition.raw.get("requestBody", {}).get("content", {}).get("application/json", {})
    with server.http() as http:
        scene = Scene(http, DOCUMENT)
        path = operation.path.format(**scene.ids)
        for title, example in body.get("examples", {}).items():
            answer = http.request(operation.method, path, json=scene.in_body(example["value"]))
            assert answer.status_code == 200, f"{title}: {answer.text}"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("operation", OPERATIONS, ids=named)
def test_every_answer_is_a_promised_one_at_length(
    operation: schemathesis.APIOperation, server: Served
) -> None:
    chosen = SEED if "FUZZ_SEED" in os.environ else secrets.randbits(32)
    call_at_random(operation, server, share(operation, CALLS_OF_THE_LONG_RUN), chosen)


def call_at_random(
    operation: schemathesis.APIOperation, server: Served, calls: int, chosen_seed: int
) -> None:
    """Make `calls` calls and hold each answer against the document."""
    print(f"FUZZ_SEED={chosen_seed}")
    promised = operation.definition.raw["responses"]
    answered: Counter[int] = Counter()
    with server.http() as http, requests.Session() as session:
        session.trust_env = False
        scene = Scene(http, DOCUMENT)

        @seed(chosen_seed)
        @settings(
            max_examples=calls,
            phases=[Phase.generate],  # what a call finds depends on the calls before: nothing to shrink
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=generated(operation), about_real_objects=st.sampled_from([True, True, True, False]))
        def call(case: schemathesis.Case, about_real_objects: bool) -> None:
            nonlocal scene
            if about_real_objects:
                case.path_parameters = scene.path_parameters(case.path_parameters)
                if case.media_type == "application/json" and not breaks_a_rule(case):
                    case.body = scene.in_body(case.body)
            answer = case.call(base_url=server.url, session=session)
            answered[answer.status_code] += 1
            assert answer.status_code < 500, answer.text
            assert str(answer.status_code) in promised, f"{answer.status_code}: {answer.text}"
            case.validate_response(answer, checks=checks_of(case))
            assert own_headers(answer.headers) <= documented_headers(promised[str(answer.status_code)])
            if case.method == "DELETE" and answer.status_code == 200:
                scene = Scene(http, DOCUMENT)

        call()
    print(dict(answered))
    assert answered.total() >= calls
    if named(operation) not in SELDOM_FITTING:
        refused = answered.keys() <= {400, 404}
        assert refused == (named(operation) in ALWAYS_REFUSED), f"answered: {dict(answered)}"


def checks_of(case: schemathesis.Case) -> list[schemathesis.CheckFunction]:
    """All, unless a request that was made to break the document cannot have done so on the wire.

    A form drops what it has no notation for, and a body that may be left out was. In a query all is text,
    which may come several times.
    """
    if case.operation.method == "get" and any(
        one["name"] == "include[]" for one in parameters(case.operation)
    ):
        return [check for check in CHECKS if check is not checks.negative_data_rejection]
    optional = not case.operation.definition.raw.get("requestBody", {}).get("required")
    left_out = optional and (case.body is None or isinstance(case.body, NotSet)) and not case.query
    if left_out or case.media_type == "multipart/form-data":
        return [check for check in CHECKS if check is not checks.negative_data_rejection]
    return CHECKS


def parameters(operation: schemathesis.APIOperation) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = operation.definition.raw.get("parameters", [])
    return listed


def own_headers(headers: Mapping[str, str]) -> set[str]:
    """Those that a caller could rely on, and so has to be told of."""
    listed = {"x-request-id", "x-should-retry", "retry-after"}
    lowered = set(map(str.lower, headers))
    return {name for name in lowered if name in listed or name.startswith(("openai-", "sherlock-"))}


def documented_headers(response: Mapping[str, Any]) -> set[str]:
    return set(response.get("headers", {}))


def breaks_a_rule(case: schemathesis.Case) -> bool:
    return case.meta is not None and case.meta.generation.mode.is_negative


def generated(operation: schemathesis.APIOperation) -> st.SearchStrategy[schemathesis.Case]:
    """Requests that fit the document, and such as do not where a request can be wrong at all."""
    fitting = operation.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE)
    if not operation.body and not operation.query:
        return fitting
    return possible(fitting | operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE))


@st.composite
def possible(draw: st.DrawFn, cases: st.SearchStrategy[schemathesis.Case]) -> schemathesis.Case:
    """Without those that schemathesis sets out to break in a way that it then cannot build."""
    try:
        return draw(cases)
    except InvalidSchema:
        reject()
