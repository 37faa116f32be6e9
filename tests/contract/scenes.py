"""Real objects for generated calls, so that these go deeper than 404."""

import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx

MODEL = "hash"
TEXT = "The harvest mouse weighs six grams. It builds its nest from woven grass."


class Scene:
    """One of everything that the published document has a route for: an ingested file, its store, a batch...

    `ids` are by the name of the path parameter.
    """

    def __init__(self, http: httpx.Client, document: Mapping[str, Any]) -> None:
        self._http = http
        self._paths = document["paths"]
        file = self._call(
            "/v1/files", files={"file": ("mouse.txt", TEXT.encode())}, data={"purpose": "assistants"}
        )
        store = self._call("/v1/vector_stores", json={"name": "animals"})
        self.ids = {"file_id": file, "vector_store_id": store, "model": MODEL}
        attached = http.post(
            f"/v1/vector_stores/{store}/files?sync=true", json={"file_id": file, "attributes": {"legs": 4}}
        )
        deadline = time.monotonic() + 150
        # The wait is bounded, and the queue may hold what other generated calls have left in it.
        while attached.json()["status"] == "in_progress" and time.monotonic() < deadline:
            time.sleep(0.1)
            attached = http.get(f"/v1/vector_stores/{store}/files/{file}")
        assert attached.json()["status"] == "completed", attached.text
        self._make_if_served(
            "batch_id", "/v1/vector_stores/{vector_store_id}/file_batches", {"file_ids": [file]}
        )
        self._make_if_served(
            "upload_id",
            "/v1/uploads",
            {"filename": "mouse.txt", "purpose": "assistants", "bytes": 4, "mime_type": "text/plain"},
        )
        if "upload_id" in self.ids:
            self.ids["part_id"] = self._call(
                f"/v1/uploads/{self.ids['upload_id']}/parts", files={"data": b"mice"}
            )
        self._make_if_served("response_id", "/v1/responses", {"model": MODEL, "input": "hello"})
        self._make_if_served("conversation_id", "/v1/conversations", {})

    def path_parameters(self, names: Mapping[str, Any]) -> dict[str, str]:
        return {name: quote(self.ids[name], safe="") for name in names}

    def in_body(self, body: Any) -> Any:
        """The same body about the objects of this scene, with whole numbers written as clients write them."""
        if isinstance(body, Mapping):
            return {name: self._member(name, value) for name, value in body.items()}
        if isinstance(body, list):
            return [self.in_body(value) for value in body]
        return int(body) if isinstance(body, float) and body.is_integer() else body

    def _member(self, name: str, value: Any) -> Any:
        one = {"previous_response_id": "response_id", "conversation": "conversation_id"}.get(name, name)
        if isinstance(value, str):
            return self.ids.get(one, value)
        several = name.removesuffix("s")
        if name != several and several in self.ids and isinstance(value, list):
            return [self.ids[several] for _ in value]
        return self.in_body(value)

    def _make_if_served(self, parameter: str, path: str, body: Mapping[str, Any]) -> None:
        if "post" in self._paths.get(path, {}):
            self.ids[parameter] = self._call(path.format(**self.ids), json=body)

    def _call(self, path: str, **request: Any) -> str:
        answer = self._http.post(path, **request)
        assert answer.status_code == 200, answer.text
        made: str = answer.json()["id"]
        return made
