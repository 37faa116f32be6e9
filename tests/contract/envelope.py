"""What every refusal has in common."""

from typing import Any

import httpx
from tests.contract.data.check_response import violations


def refused(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The error of an answer that has `status` and nothing but the envelope."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert violations("GET", "/models", status, body) == []  # the schema has one shape of error for all calls
    error: dict[str, Any] = body["error"]
    return error
