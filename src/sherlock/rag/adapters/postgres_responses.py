"""`ResponseStore` in PostgreSQL.

JSON goes in and comes out as text: that keeps integers what they are, and the escapes of characters that
PostgreSQL's text does not know. Whatever is looked for stands in a column of its own. What may be long,
pictures and whole conversations, is read and written item by item in a thread.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from sherlock.rag.adapters.postgres import Database, check_id, storable
from sherlock.rag.domain.errors import Conflict, InvalidRequest, NotFound
from sherlock.rag.domain.models import (
    MAX_CONTEXT_BYTES,
    RESPONSE_LIFE_S,
    Page,
    PageRequest,
    ResponseItem,
    StoredResponse,
    WorkspaceId,
)

_NOT_REREAD = "file_search_call"

# First statement of what reads in several steps: nothing is deleted between them.
_SNAPSHOT = text("set transaction isolation level repeatable read")

# A response joins the conversation of the one before it, or begins one.
_ADD = text("""
    with workspace as (insert into workspaces (id) values (:workspace_id) on conflict do nothing)
    insert into responses (workspace_id, id, previous_id, thread_id, bytes, body, created_at)
    values (:workspace_id, :id, :previous_id,
            coalesce(
                (select thread_id from responses where workspace_id = :workspace_id and id = :previous_id),
                :id
            ),
            :bytes, CAST(:body AS json), to_timestamp(:created_at))
""")

_ADD_ITEMS = text("""
    insert into response_items (workspace_id, response_id, position, output, id, type, item)
    select :workspace_id, :response_id, position, position > :inputs, id, type, CAST(item AS json)
    from unnest(CAST(:ids AS text[]), CAST(:types AS text[]), CAST(:items AS text[]))
         with ordinality as given (id, type, item, position)
""")

_GET = text("""
    select id, previous_id, CAST(body AS text) as body,
           CAST(extract(epoch from created_at) AS bigint) as created_at
    from responses where workspace_id = :workspace_id and id = :id
""")

# The response's own items.
_GET_ITEMS = text("""
    select output, CAST(item AS text) as item from response_items
    where workspace_id = :workspace_id and response_id = :id order by position
""")

# The response (depth 0) and those it builds upon, with the bytes from there up to it; at most one step past
# a limit, so that a conversation without end is not walked through.
_CONVERSATION = """
    with recursive conversation as (
        select id, previous_id, bytes, 0 as depth from responses
        where workspace_id = :workspace_id and id = :id
        union all
        select r.id, r.previous_id, c.bytes + r.bytes, c.depth + 1
        from conversation c join responses r on r.workspace_id = :workspace_id and r.id = c.previous_id
        where c.bytes <= :max_bytes
    )
"""

# How large the conversation is, and which response of it is missing.
_EXTENT = text(f"""
    {_CONVERSATION}
    select bytes, previous_id as missing from conversation order by depth desc limit 1
""")

_CONTEXT = text(f"""
    {_CONVERSATION}
    select CAST(i.item AS text) from conversation c
    join response_items i on i.workspace_id = :workspace_id and i.response_id = c.id and i.type <> :not_reread
    order by c.depth desc, i.position
""")

_FIND_ITEMS = text("""
    select distinct on (i.id) i.id, CAST(i.item AS text) as item
    from response_items i join responses r on r.workspace_id = i.workspace_id and r.id = i.response_id
    where i.workspace_id = :workspace_id and i.id = any(CAST(:ids AS text[]))
    order by i.id, r.created_at desc
""")

# What the response was made from, numbered from the oldest; items are read for one page only.
_INPUT = f"""
    {_CONVERSATION}, input as (
        select i.response_id, i.position, i.id,
               row_number() over (order by c.depth desc, i.position) as number
        from conversation c
        join response_items i on i.workspace_id = :workspace_id and i.response_id = c.id
        where c.depth > 0 or not i.output
    )
"""
_CURSOR = text(f"{_INPUT} select number from input where id = :cursor order by number limit 1")
_PAGE = """
    select CAST(i.item AS text) from input n
    join response_items i on i.workspace_id = :workspace_id
        and (i.response_id, i.position) = (n.response_id, n.position)
"""
_PAGE_ASC = text(f"""{_INPUT} {_PAGE}
    where n.number > coalesce(CAST(:after AS bigint), 0) order by n.number limit :limit
""")
_PAGE_DESC = text(f"""{_INPUT} {_PAGE}
    where n.number < coalesce(CAST(:after AS bigint), 9223372036854775807) order by n.number desc limit :limit
""")

_DELETE = text("delete from responses where workspace_id = :workspace_id and id = :id returning id")

# Two processes that tidy up at once take different rows.
_DELETE_EXPIRED = text("""
    with expired as (
        select old.workspace_id, old.id from responses old
        where old.created_at < now() - make_interval(secs => :life_s)
          and not exists (
              select from responses later
              where later.workspace_id = old.workspace_id and later.thread_id = old.thread_id
                and later.created_at >= now() - make_interval(secs => :life_s)
          )
        order by old.created_at limit :limit for update skip locked
    )
    delete from responses r using expired e where r.workspace_id = e.workspace_id and r.id = e.id
""")


class PostgresResponses:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, response: StoredResponse) -> None:
        items = [*response.input, *response.output]
        written = await asyncio.to_thread(lambda: [json.dumps(item) for item in items])
        key = {"workspace_id": response.workspace_id}
        row = {
            **key,
            "id": response.id,
            "previous_id": response.previous_id,
            "bytes": sum(len(w) for w, i in zip(written, items, strict=True) if i["type"] != _NOT_REREAD),
            "body": json.dumps(response.body),
            "created_at": response.created_at,
        }
        rows = {
            **key,
            "response_id": response.id,
            "inputs": len(response.input),
            "ids": [item["id"] for item in items],
            "types": [item["type"] for item in items],
            "items": written,
        }
        try:
            async with self._database.transaction() as connection:
                await connection.execute(_ADD, row)
                await connection.execute(_ADD_ITEMS, rows)
        except IntegrityError as error:
            raise Conflict("A response with this id exists already.") from error

    async def get(self, workspace_id: WorkspaceId, response_id: str) -> StoredResponse:
        key = _key(workspace_id, response_id)
        async with self._database.transaction() as connection:
            row = (await connection.execute(_GET, key)).one_or_none()
            if row is None:
                raise NotFound("Response", response_id)
            items = (await connection.execute(_GET_ITEMS, key)).all()
        return StoredResponse(
            id=row.id,
            workspace_id=workspace_id,
            created_at=row.created_at,
            previous_id=row.previous_id,
            body=json.loads(row.body),
            input=tuple(json.loads(item.item) for item in items if not item.output),
            output=tuple(json.loads(item.item) for item in items if item.output),
        )

    async def context(self, workspace_id: WorkspaceId, response_id: str) -> tuple[ResponseItem, ...]:
        key = _key(workspace_id, response_id, "previous_response_id")
        parameters = {**key, "max_bytes": MAX_CONTEXT_BYTES}
        async with self._database.transaction() as connection:
            await connection.execute(_SNAPSHOT)
            extent = (await connection.execute(_EXTENT, parameters)).one_or_none()
            if extent is None:
                raise NotFound("Response", response_id, param="previous_response_id")
            if extent.bytes > MAX_CONTEXT_BYTES:
                raise InvalidRequest(
                    "The conversation has become too long to go on with.",
                    param="previous_response_id",
                    code="context_length_exceeded",
                )
            if extent.missing is not None:
                raise NotFound("Response", extent.missing, param="previous_response_id")
            items = (await connection.scalars(_CONTEXT, {**parameters, "not_reread": _NOT_REREAD})).all()
        return await asyncio.to_thread(lambda: tuple(map(json.loads, items)))

    async def find_items(
        self, workspace_id: WorkspaceId, item_ids: Sequence[str]
    ) -> Mapping[str, ResponseItem]:
        parameters = {"workspace_id": workspace_id, "ids": list(filter(storable, item_ids))}
        async with self._database.transaction() as connection:
            found = await connection.execute(_FIND_ITEMS, parameters)
        return {row.id: json.loads(row.item) for row in found}

    async def list_input_items(
        self, workspace_id: WorkspaceId, response_id: str, page: PageRequest
    ) -> Page[ResponseItem]:
        key = _key(workspace_id, response_id)
        parameters: dict[str, Any] = {**key, "max_bytes": 2**62, "after": None, "limit": page.limit + 1}
        statement = _PAGE_ASC if page.order == "asc" else _PAGE_DESC
        async with self._database.transaction() as connection:
            await connection.execute(_SNAPSHOT)
            if (await connection.execute(_GET, key)).one_or_none() is None:
                raise NotFound("Response", response_id)
            if page.after is not None:
                check_id("ResponseItem", page.after, "after")
                parameters["after"] = await connection.scalar(_CURSOR, {**parameters, "cursor": page.after})
                if parameters["after"] is None:
                    raise NotFound("ResponseItem", page.after, param="after")
            items = (await connection.scalars(statement, parameters)).all()
        return Page(tuple(map(json.loads, items[: page.limit])), len(items) > page.limit)

    async def delete(self, workspace_id: WorkspaceId, response_id: str) -> None:
        key = _key(workspace_id, response_id)
        async with self._database.transaction() as connection:
            if (await connection.scalar(_DELETE, key)) is None:
                raise NotFound("Response", response_id)

    async def delete_expired(self, limit: int) -> int:
        parameters = {"limit": limit, "life_s": float(RESPONSE_LIFE_S)}
        async with self._database.transaction() as connection:
            return (await connection.execute(_DELETE_EXPIRED, parameters)).rowcount


def _key(workspace_id: WorkspaceId, response_id: str, param: str = "id") -> dict[str, Any]:
    check_id("Response", response_id, param)
    return {"workspace_id": workspace_id, "id": response_id}
