"""The image, the compose file and the settings fit together: no service gets a name that Sherlock refuses."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROFILES = {
    "think": {"api-think"},
    "reason": {"api", "worker", "migrate", "postgres", "minio", "nats"},
    "reason-ocr": {"api", "worker-ocr", "migrate", "postgres", "minio", "nats"},
    "ultra-instinct": {
        "api-observed",
        "worker-observed",
        "migrate",
        "postgres",
        "minio",
        "nats",
        "otel-collector",
    },
}
VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?::(?P<kind>[?-])(?P<rest>[^}]*))?\}")
SECRET = re.compile(r"PASSWORD|SECRET|TOKEN|ACCESS_KEY")


@pytest.fixture(scope="module")
def text() -> str:
    return (ROOT / "docker-compose.yml").read_text()


@pytest.fixture(scope="module")
def compose(text: str) -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load(text)
    return parsed


@pytest.fixture(scope="module")
def example() -> dict[str, str]:
    """The variables of `.env.example`, those in a comment included."""
    lines = (ROOT / ".env.example").read_text().splitlines()
    pairs = [line.removeprefix("# ").split("=", 1) for line in lines if re.match(r"(# )?[A-Z_0-9]+=", line)]
    return {name: value for name, value in reversed(pairs)}


def interpolate(value: str, variables: dict[str, str]) -> str:
    """As Compose does it: a required variable must be there and not empty."""

    def replace(match: re.Match[str]) -> str:
        found = variables.get(match["name"], "")
        if not found and match["kind"] == "?":
            raise KeyError(match["name"])
        return found or (match["rest"] if match["kind"] == "-" else "")

    return VARIABLE.sub(replace, value)


def sherlocks(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Built here; one that reads scanned pages is another image."""
    return {name: service for name, service in compose["services"].items() if "build" in service}


def test_compose_file_fits_the_specification(compose: dict[str, Any]) -> None:
    schema = json.loads((ROOT / "tests/contract/data/compose-spec.json").read_text())
    jsonschema.Draft201909Validator(schema).validate(compose)


def test_schema_refuses_a_misspelt_key(compose: dict[str, Any]) -> None:
    schema = json.loads((ROOT / "tests/contract/data/compose-spec.json").read_text())
    wrong = {"services": {"api": compose["services"]["api"] | {"port": ["8802:8000"]}}}
    with pytest.raises(jsonschema.ValidationError, match="port"):
        jsonschema.Draft201909Validator(schema).validate(wrong)


@pytest.mark.parametrize(("profile", "expected"), PROFILES.items())
def test_profile_starts_its_services(compose: dict[str, Any], profile: str, expected: set[str]) -> None:
    services = compose["services"]
    started = {name for name, service in services.items() if profile in service["profiles"]}
    assert started == expected
    for name in started:
        assert set(services[name].get("depends_on", {})) <= started


@pytest.mark.parametrize("profile", PROFILES)
def test_each_profile_has_one_api_on_port_8802(compose: dict[str, Any], profile: str) -> None:
    running = [service for service in compose["services"].values() if profile in service["profiles"]]
    apis = [service for service in running if service.get("container_name") == "arc-sherlock"]
    assert [api["command"] for api in apis] == [["serve"]]
    assert interpolate(apis[0]["ports"][0], {}) == "127.0.0.1:8802:8000"
    assert sum(len(service.get("ports", [])) for service in running) == 1, "only the API is published"


def test_rag_is_what_the_profile_says(compose: dict[str, Any]) -> None:
    gate = {name: s["environment"]["SHERLOCK_RAG_ENABLED"] for name, s in sherlocks(compose).items()}
    rag = ("api", "api-observed", "worker", "worker-observed", "worker-ocr", "migrate")
    assert gate == {"api-think": "false", **dict.fromkeys(rag, "true")}


def test_telemetry_goes_to_the_collector_of_its_profile(compose: dict[str, Any]) -> None:
    def sent(name: str, **variables: str) -> str:
        endpoint = compose["services"][name]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"]
        return interpolate(endpoint, variables)

    for role in ("api", "worker"):
        plain, observed = (compose["services"][name]["environment"] for name in (role, f"{role}-observed"))
        assert {name for name in plain if plain[name] != observed[name]} == {"OTEL_EXPORTER_OTLP_ENDPOINT"}
        assert sent(role) == ""
        assert sent(f"{role}-observed") == "http://otel-collector:4318"
        assert sent(f"{role}-observed", OTEL_EXPORTER_OTLP_ENDPOINT="http://other:1") == "http://other:1"


def test_api_and_worker_wait_for_the_migrations(compose: dict[str, Any]) -> None:
    for name in ("api", "api-observed", "worker", "worker-observed", "worker-ocr"):
        needs = compose["services"][name]["depends_on"]
        assert needs["migrate"]["condition"] == "service_completed_successfully"
    assert compose["services"]["migrate"]["restart"] == "no"
    assert compose["services"]["migrate"]["depends_on"]["postgres"]["condition"] == "service_healthy"


def test_postgres_runs_the_schema_on_an_empty_volume(compose: dict[str, Any]) -> None:
    postgres = compose["services"]["postgres"]
    assert postgres["image"] == "pgvector/pgvector:pg18"
    assert "./initdb:/docker-entrypoint-initdb.d:ro" in postgres["volumes"]


def test_named_volumes_are_declared(compose: dict[str, Any]) -> None:
    used = {
        volume.split(":")[0]
        for service in compose["services"].values()
        for volume in service.get("volumes", [])
        if not volume.startswith(".")
    }
    assert used == set(compose["volumes"])


def test_no_secret_has_a_default(text: str, example: dict[str, str]) -> None:
    secrets = [match for match in VARIABLE.finditer(text) if SECRET.search(match["name"])]
    assert secrets
    for match in secrets:
        assert match["kind"] == "?", f"{match['name']} must be required"
        assert example[match["name"]] == "", f"{match['name']} has a value in .env.example"
    for line in text.splitlines():
        if re.match(r"\s+\w*(PASSWORD|SECRET|TOKEN)\w*: ", line):
            assert "${" in line, line


def test_example_lists_every_variable(text: str, example: dict[str, str]) -> None:
    assert {match["name"] for match in VARIABLE.finditer(text)} == set(example)


def test_missing_secret_stops_compose(compose: dict[str, Any]) -> None:
    url = compose["services"]["api"]["environment"]["SHERLOCK_POSTGRES_URL"]
    with pytest.raises(KeyError, match="POSTGRES_OWNER_PASSWORD"):
        interpolate(url, {"POSTGRES_OWNER_PASSWORD": ""})


def test_every_name_is_a_setting(text: str, example: dict[str, str]) -> None:
    from sherlock import config

    everywhere = text + (ROOT / "Dockerfile").read_text() + " ".join(example)
    used = set(re.findall(r"\bSHERLOCK_[A-Z0-9_]+", everywhere))
    assert len(used) > 10
    assert used <= config.known_names()


@pytest.mark.parametrize(
    "name", ["api-think", "api", "api-observed", "worker", "worker-observed", "worker-ocr", "migrate"]
)
def test_sherlock_accepts_what_it_is_given(
    compose: dict[str, Any], example: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sherlock import config

    filled = {variable: value or f"some-{variable.lower()}" for variable, value in example.items()}
    filled["OTEL_EXPORTER_OTLP_ENDPOINT"] = ""
    given = {k: interpolate(v, filled) for k, v in compose["services"][name]["environment"].items()}
    for known in config.known_names():
        monkeypatch.delenv(known, raising=False)
    for variable, value in given.items():
        monkeypatch.setenv(variable, value)

    settings = config.load()

    assert settings.rag_enabled == (name != "api-think")
    if settings.rag_enabled:
        assert settings.file_store == "minio"
        url = settings.postgres_url.get_secret_value()
        assert url == "postgresql://sherlock_owner:some-postgres_owner_password@postgres:5432/sherlock"


def test_image_runs_as_an_ordinary_user_and_reports_its_health() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    final = dockerfile.rsplit("\nFROM ", 1)[1]
    assert "\nUSER sherlock\n" in final
    assert "\nEXPOSE 8000\n" in final
    assert "/health" in final
    assert '\nENTRYPOINT ["sherlock"]\n' in final
    assert '\nCMD ["serve"]' in final
    assert "--require-hashes -r requirements.lock" in dockerfile


def test_what_the_image_copies_is_in_the_build_context() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    lines = re.findall(r"^COPY (?!--from)(.+)$", dockerfile, re.MULTILINE)
    copied = {source for line in lines for source in line.split()[:-1]}
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == allowed
