"""Publishing a large file: in parts, of a transaction each, hidden until the last one shows them all.

Each vector's way into the graph takes milliseconds, so that a large file takes long. A worker that dies loses
one part of it, and nobody waits for its locks longer than a part takes. A row of `publishing` hides the file
from searches.
"""

from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

# ── statements ──────────────────────────────────────────────────────────────

# Whose chunks of the file are hidden, if any are.
_HIDDEN_BY = text("select job_id from publishing where store_no = :store_no and file_no = :file_no")

# The same, before any of it goes: whoever clears holds this row. One that finds chunks deleted by another
# would take them for the last ones, and show the rest.
_LOCK_HIDDEN = text("""
    select job_id from publishing where store_no = :store_no and file_no = :file_no for update
""")

_HIDE = text("insert into publishing (store_no, file_no, job_id) values (:store_no, :file_no, :job)")

# Nothing of the file counts in a search any more.
_COUNT_NOTHING = text("""
    update vector_store_files set chunk_count = 0, window_count = 0, usage_bytes = 0
    where store_no = :store_no and file_no = :file_no and chunk_count <> 0
""")

# The parts that are there; they are put in side by side, so any may be missing.
_HIDDEN_PARTS = text("""
    select chunk_index / :limit * :limit as first, count(*) as chunks from knowledge_chunks
    where workspace_id = :workspace and vector_store_id = :store and file_id = :file
    group by 1
""")

# Those that are still what is staged: a later attempt may have cut the text in another way.
_COUNT_SOUND = text("""
    select count(*)
    from knowledge_chunks c
    join ingest_chunks i on i.job_id = :job and i.chunk_index = c.chunk_index
    where c.workspace_id = :workspace and c.vector_store_id = :store and c.file_id = :file
      and (c.content, c.char_start, c.char_end, c.page, c.heading, c.gap, c.page_breaks)
          is not distinct from (i.content, i.char_start, i.char_end, i.page, i.heading, i.gap, i.page_breaks)
""")

# No job has this number: what is hidden is to go.
_GIVE_UP = text("update publishing set job_id = 0 where store_no = :store_no and file_no = :file_no")

# What a part will add to the document frequencies, in one row: parts put in side by side do not meet.
_COUNT_TERMS = text("""
    insert into publishing_parts (store_no, file_no, first, keys, counts)
    select :store_no, :file_no, :first, array_agg(key), array_agg(df)
    from (
        select k as key, CAST(count(*) as int) as df
        from ingest_chunks, unnest(keys) k
        where job_id = :job and chunk_index >= :first and chunk_index < :end
        group by k
    ) as counted
    having count(*) > 0
""")

# In key order, as every writer of term_df goes. Older versions keep theirs in `publishing_terms`.
_ADD_TERMS = text("""
    insert into term_df (store_no, key, df)
    select :store_no, key, sum(df)
    from (
        select unnest(keys) as key, unnest(counts) as df from publishing_parts
        where store_no = :store_no and file_no = :file_no
        union all
        select key, df from publishing_terms where store_no = :store_no and file_no = :file_no
    ) as counted
    group by key
    order by key
    on conflict (store_no, key) do update set df = term_df.df + excluded.df
""")

# Its terms' counts go along.
_UNHIDE = text("delete from publishing where store_no = :store_no and file_no = :file_no")

_UNSTAGE = text("delete from ingest_chunks where job_id = :job")

# Some hidden chunks of a file, with their windows and terms.
_CLEAR = text("""
    delete from knowledge_chunks where id in (
        select id from knowledge_chunks
        where workspace_id = :workspace and vector_store_id = :store and file_id = :file
        limit :limit
    )
""")

# A file whose publishing has ended half way, cancelled or failed for good. Its row alone is locked: whoever
# waits for it, to clear the file or to delete it, holds the membership, which nobody here asks for.
_LEFT_BEHIND = text("""
    select p.store_no, p.file_no, m.workspace_id as workspace, m.vector_store_id as store, m.file_id as file
    from publishing p join vector_store_files m using (store_no, file_no)
    where not exists (
        select from ingest_jobs j where j.id = p.job_id and j.state in ('waiting', 'running')
    )
    limit 1
    for update of p skip locked
""")


async def is_hidden(connection: AsyncConnection, file: dict[str, Any]) -> bool:
    return (await connection.execute(_HIDDEN_BY, file)).one_or_none() is not None


async def hide(connection: AsyncConnection, file: dict[str, Any]) -> None:
    """From now on nothing of the file is found; it has no chunks."""
    await connection.execute(_COUNT_NOTHING, file)
    await connection.execute(_HIDE, file)


async def resume(
    connection: AsyncConnection, file: dict[str, Any], chunk_count: int, limit: int
) -> frozenset[int] | None:
    """The first chunk of each part of the hidden file, `limit` chunks, that is there and can stay.

    `None` when some had to go, and more may have to: what another job hid, or no longer agrees with what is
    staged, `limit` chunks a call.
    """
    owner = (await connection.execute(_LOCK_HIDDEN, file)).scalar_one_or_none()
    if owner is None:
        await hide(connection, file)
        return frozenset()
    if owner == file["job"]:
        hidden = {
            row.first: row.chunks for row in await connection.execute(_HIDDEN_PARTS, file | {"limit": limit})
        }
        whole = all(chunks == min(limit, chunk_count - first) for first, chunks in hidden.items())
        if whole and (await connection.execute(_COUNT_SOUND, file)).scalar_one() == sum(hidden.values()):
            return frozenset(hidden)
        await connection.execute(_GIVE_UP, file)
    await _clear(connection, file, limit)
    return None


async def count_terms(connection: AsyncConnection, file: dict[str, Any], first: int, end: int) -> None:
    """Remember what the staged chunks of a part will add to the document frequencies."""
    await connection.execute(_COUNT_TERMS, file | {"first": first, "end": end})


async def show(connection: AsyncConnection, file: dict[str, Any]) -> None:
    """From now on the file is found; its staged chunks are needed no more."""
    await connection.execute(_ADD_TERMS, file)
    await connection.execute(_UNHIDE, file)
    await connection.execute(_UNSTAGE, file)


async def clear_left_behind(connection: AsyncConnection, limit: int) -> bool:
    """Remove up to `limit` hidden chunks that no job will show; whether there was anything to do."""
    found = (await connection.execute(_LEFT_BEHIND)).mappings().one_or_none()
    if found is not None:
        await _clear(connection, dict(found), limit)
    return found is not None


async def _clear(connection: AsyncConnection, file: dict[str, Any], limit: int) -> None:
    cleared = await connection.execute(_CLEAR, file | {"limit": limit})
    if cleared.rowcount < limit:
        await connection.execute(_UNHIDE, file)
