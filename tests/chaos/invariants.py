"""What has to hold when all is quiet again, whatever was killed, cut or full before."""

import hashlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tests.chaos.corpus import Document
from tests.chaos.messages import Messages
from tests.chaos.plant import Plant
from tests.chaos.users import Ingest

from sherlock.rag.application.objects import HELD_S, TRY_AGAIN_S

SETTLED_WITHIN_S = 90.0
"""After the last disturbance. A job that was given back again and again waits up to a minute for its turn."""

TIDY_WITHIN_S = HELD_S + TRY_AGAIN_S + 60.0
"""After the last kill: a reservation runs out, perhaps a removal fails once, and housekeepers come round."""

Key = tuple[str, str]
"""Vector store and file."""

_OPEN_JOBS = "select count(*) from ingest_jobs where state in ('waiting', 'running')"
_OWED = "select count(*) from ingest_requests where published_at is null"

_PARTS = "select count(*) from upload_objects"
_LOOSE = "select count(*) from loose_objects"

# Everything that search finds of a file, but for numbers that every ingest makes anew: texts, offsets, pages,
# headings, the vector of each window, and the terms with their weights.
_FINGERPRINTS = """
    select m.vector_store_id, m.file_id, md5(concat_ws('/',
        m.status, m.error_code, m.error_message, m.chunk_count, m.window_count, m.usage_bytes,
        (select string_agg(row(c.chunk_index, c.content, c.char_start, c.char_end, c.page, c.heading,
                               t.weights, cardinality(t.keys))::text, '' order by c.chunk_index)
         from knowledge_chunks c left join chunk_terms t on t.chunk_id = c.id
         where c.vector_store_id = m.vector_store_id and c.file_id = m.file_id),
        (select string_agg(row(c.chunk_index, w.part, w.embedding)::text, '' order by c.chunk_index, w.part)
         from knowledge_chunks c join chunk_windows w on w.chunk_id = c.id
         where c.vector_store_id = m.vector_store_id and c.file_id = m.file_id)))
    from vector_store_files m
"""

_MEMBERSHIPS = """
    select vector_store_id, file_id, status, concat_ws(': ', error_code, error_message)
    from vector_store_files
"""
_JOBS = "select vector_store_id, file_id, state, count(*) from ingest_jobs group by 1, 2, 3"

# Counts that are 0 in a sound database, by what they would mean.
_WRONG = {
    "staged chunks left over": "select count(*) from ingest_chunks",
    "jobs without an end": _OPEN_JOBS,
    "results owed for messages": _OWED,
    "left-over parts of uploads": _PARTS,
    "objects of nobody": _LOOSE,
    "chunks of a file that is not completed": """
        select count(*) from knowledge_chunks c
        left join vector_store_files m using (workspace_id, vector_store_id, file_id)
        where m.status is distinct from 'completed'
    """,
    "chunks with a number missing before them": """
        select count(*) from (
            select from knowledge_chunks group by workspace_id, vector_store_id, file_id
            having count(*) <> max(chunk_index) + 1
        ) gaps
    """,
    "memberships whose counts are not their chunks'": """
        select count(*) from vector_store_files m
        where m.chunk_count <> (
            select count(*) from knowledge_chunks c
            where c.workspace_id = m.workspace_id and c.vector_store_id = m.vector_store_id
              and c.file_id = m.file_id)
        or m.window_count <> (
            select count(*) from chunk_windows w where w.store_no = m.store_no and w.file_no = m.file_no)
    """,
    "windows and terms that no chunk of their file has": """
        select (select count(*) from chunk_windows w left join knowledge_chunks c
                on c.id = w.chunk_id and c.store_no = w.store_no and c.file_no = w.file_no where c.id is null)
             + (select count(*) from chunk_terms t left join knowledge_chunks c
                on c.id = t.chunk_id and c.store_no = t.store_no and c.file_no = t.file_no where c.id is null)
    """,
    "chunks without a window or terms": """
        select count(*) from knowledge_chunks c
        where not exists (select from chunk_windows w where w.chunk_id = c.id)
           or not exists (select from chunk_terms t where t.chunk_id = c.id)
    """,
    "stores whose file_count is not their memberships'": """
        select count(*) from vector_stores s where s.file_count <> (
            select count(*) from vector_store_files m where m.store_no = s.store_no)
    """,
    "document frequencies that differ from a recount": """
        select count(*) from (
            select store_no, k as key, count(*)::int as df from chunk_terms, unnest(keys) k group by 1, 2
        ) recounted full join (select * from term_df where df <> 0) kept using (store_no, key)
        where recounted.df is distinct from kept.df
    """,
}


def wait_until_quiet(plant: Plant, within_s: float = SETTLED_WITHIN_S) -> float:
    """Until no job is open and no result owed; seconds that took."""
    began = time.monotonic()
    open_ones = f"select ({_OPEN_JOBS}), ({_OWED})"
    while (left := plant.database.rows(open_ones)[0]) != (0, 0):
        assert time.monotonic() < began + within_s, f"stuck: {left} jobs and results after {within_s} s"
        time.sleep(0.1)
    return time.monotonic() - began


def wait_until_tidy(plant: Plant) -> float:
    """Until workers have removed by themselves all that belongs to no file; seconds that took."""
    began = time.monotonic()
    while (left := plant.database.rows(f"select ({_PARTS}), ({_LOOSE})")[0]) != (0, 0):
        assert time.monotonic() < began + TIDY_WITHIN_S, f"left: {left} parts and objects of nobody"
        time.sleep(0.5)
    return time.monotonic() - began


def fingerprints(plant: Plant) -> Mapping[Key, str]:
    return {(store, file): fingerprint for store, file, fingerprint in plant.database.rows(_FINGERPRINTS)}


def violations(
    plant: Plant,
    ingests: Sequence[Ingest],
    reference: Mapping[Document, str],
    messages: Messages,
    refused: Sequence[str] = (),
) -> list[str]:
    """Every rule that is broken, as a sentence; none when all is well. `wait_until_quiet` comes before.

    `refused` are the `request_id`s of messages that could never be done.
    """
    return [
        *_database(plant),
        *_ingests(plant, ingests, reference),
        *_objects(plant),
        *_completions(plant),
        *_results(ingests, messages, refused),
    ]


def _database(plant: Plant) -> Iterator[str]:
    for name, count in _WRONG.items():
        if found := plant.database.rows(count)[0][0]:
            yield f"{found} {name}"


def _ingests(plant: Plant, ingests: Sequence[Ingest], reference: Mapping[Document, str]) -> Iterator[str]:
    """Each ended as it had to, once, with what an undisturbed ingest makes of the same bytes."""
    memberships = plant.database.rows(_MEMBERSHIPS)
    statuses = {(store, file): status for store, file, status, _ in memberships}
    reasons = {(store, file): reason for store, file, _, reason in memberships}
    made = fingerprints(plant)
    jobs = {(store, file, state): count for store, file, state, count in plant.database.rows(_JOBS)}
    for ingest in ingests:
        key = (ingest.store_id, ingest.file_id)
        name, has_to_be = ingest.document.name, ingest.document.status
        if key not in statuses:
            yield f"{name} is lost"
        elif not ingest.status == statuses[key] == has_to_be:
            found = f"{statuses[key]} (the API said {ingest.status}; {reasons[key]})"
            yield f"{name} is {found}, not {has_to_be}"
        elif made[key] != reference[ingest.document]:
            yield f"{name} has other chunks than when it is not disturbed"
        state = "done" if has_to_be == "completed" else "failed"
        ended = {s: n for (*membership, s), n in jobs.items() if tuple(membership) == key}
        if key in statuses and ended != {state: 1}:
            yield f"{name} has jobs {ended}, not one that is {state}"


def _objects(plant: Plant) -> Iterator[str]:
    """Each record has its bytes, and no bytes are without a record."""
    records = {
        f"{workspace}/{file}": (size, sha256)
        for workspace, file, size, sha256 in plant.database.rows(
            "select workspace_id, id, bytes, sha256 from knowledge_files"
        )
    }
    objects = {name: size for name, size in plant.bucket.objects().items() if "/" in name}
    if orphans := objects.keys() - records.keys():
        yield f"{len(orphans)} objects without a record"
    for name, (size, sha256) in records.items():
        if objects.get(name) != size or hashlib.sha256(plant.bucket.content(name)).hexdigest() != sha256:
            yield "a file's bytes are missing or not what was sent"


def _completions(plant: Plant) -> Iterator[str]:
    """No job is told of as completed twice, whoever ran it."""
    told: Counter[int] = Counter()
    for entry in plant.log():
        if entry.get("message") == "job completed":
            told[entry["job"]] += 1
    for job, times in told.items():
        if times > 1:
            yield f"job {job} was completed {times} times"


def _results(ingests: Sequence[Ingest], messages: Messages, refused: Sequence[str]) -> Iterator[str]:
    """Each message has one result, which says how the ingest ended."""
    if waiting := messages.waiting():
        yield f"{waiting} messages were never taken"
    results: Counter[tuple[str, str]] = Counter(
        (result["request_id"], result["status"]) for result in messages.results()
    )
    expected: Counter[tuple[str, str]] = Counter()
    for ingest in ingests:  # a file may have been asked for in several stores
        expected.update([(ingest.file_id, ingest.document.status)] * ingest.messages)
    expected.update((request_id, "failed") for request_id in refused)
    if results != expected:
        yield f"results that are missing: {expected - results}, that are too many: {results - expected}"
