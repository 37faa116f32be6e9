"""`ResponseStore` in memory; passes the behaviour suite in `tests/ports/test_response_store.py`."""

import copy
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sherlock.rag.domain.errors import Conflict, DatabaseUnavailable, InvalidRequest, NotFound
from sherlock.rag.domain.models import (
    MAX_CONTEXT_BYTES,
    RESPONSE_LIFE_S,
    Page,
    PageRequest,
    ResponseItem,
    StoredResponse,
    WorkspaceId,
)


@dataclass
class InMemoryResponses:
    """`down`: as if the database did not answer."""

    responses: dict[tuple[WorkspaceId, str], StoredResponse] = field(default_factory=dict)
    threads: dict[tuple[WorkspaceId, str], str] = field(default_factory=dict)
    """Id of the first response of each one's conversation."""
    down: bool = False

    async def add(self, response: StoredResponse) -> None:
        self._check()
        key = (response.workspace_id, response.id)
        if key in self.responses:
            raise Conflict("A response with this id exists already.")
        previous = (response.workspace_id, response.previous_id or "")
        self.threads[key] = self.threads.get(previous, response.id)
        self.responses[key] = copy.deepcopy(response)

    async def get(self, workspace_id: WorkspaceId, response_id: str) -> StoredResponse:
        self._check()
        return copy.deepcopy(self._response(workspace_id, response_id))

    async def context(self, workspace_id: WorkspaceId, response_id: str) -> tuple[ResponseItem, ...]:
        self._check()
        conversation = [self._response(workspace_id, response_id, "previous_response_id")]
        while (previous := conversation[0].previous_id) is not None:
            conversation.insert(0, self._response(workspace_id, previous, "previous_response_id"))
        items = [item for response in conversation for item in (*response.input, *response.output)]
        read = [item for item in items if item["type"] != "file_search_call"]
        if sum(len(json.dumps(item)) for item in read) > MAX_CONTEXT_BYTES:
            raise InvalidRequest("Too long.", param="previous_response_id", code="context_length_exceeded")
        return tuple(read)

    async def find_items(
        self, workspace_id: WorkspaceId, item_ids: Sequence[str]
    ) -> Mapping[str, ResponseItem]:
        self._check()
        theirs = [response for key, response in self.responses.items() if key[0] == workspace_id]
        theirs.sort(key=lambda response: response.created_at)
        items = {item["id"]: item for response in theirs for item in (*response.input, *response.output)}
        return {id: items[id] for id in item_ids if id in items}

    async def list_input_items(
        self, workspace_id: WorkspaceId, response_id: str, page: PageRequest
    ) -> Page[ResponseItem]:
        self._check()
        response = self._response(workspace_id, response_id)
        items = list(response.input)
        previous = response.previous_id
        while previous is not None and (workspace_id, previous) in self.responses:
            earlier = self.responses[workspace_id, previous]
            items = [*earlier.input, *earlier.output, *items]
            previous = earlier.previous_id
        if page.order == "desc":
            items.reverse()
        start = 0
        if page.after is not None:
            ids = [item["id"] for item in items]
            if page.after not in ids:
                raise NotFound("ResponseItem", page.after, param="after")
            start = ids.index(page.after) + 1
        return Page(tuple(items[start : start + page.limit]), len(items) > start + page.limit)

    async def delete(self, workspace_id: WorkspaceId, response_id: str) -> None:
        self._check()
        self._response(workspace_id, response_id)
        del self.responses[workspace_id, response_id]

    async def delete_expired(self, limit: int) -> int:
        self._check()
        oldest = int(time.time()) - RESPONSE_LIFE_S
        alive = {
            (key[0], self.threads[key])
            for key, response in self.responses.items()
            if response.created_at >= oldest
        }
        expired = [key for key in self.responses if (key[0], self.threads[key]) not in alive]
        for key in expired[:limit]:
            del self.responses[key]
        return len(expired[:limit])

    def _check(self) -> None:
        if self.down:
            raise DatabaseUnavailable()

    def _response(self, workspace_id: WorkspaceId, response_id: str, param: str = "id") -> StoredResponse:
        if (workspace_id, response_id) not in self.responses:
            raise NotFound("Response", response_id, param=param)
        return self.responses[workspace_id, response_id]
