"""What every `LooseObjects` does, in memory and in PostgreSQL, together with the catalog beside it."""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fakes import InMemoryCatalog, MemoryState
from tests.fakes_objects import InMemoryLooseObjects
from tests.ports.test_catalog import a_file

from sherlock.rag.adapters.postgres import Database
from sherlock.rag.adapters.postgres_catalog import PostgresCatalog
from sherlock.rag.adapters.postgres_loose_objects import PostgresLooseObjects
from sherlock.rag.domain.errors import Conflict, NotFound, ReservationLost
from sherlock.rag.domain.models import StoredFile, WorkspaceId
from sherlock.rag.domain.ports import Catalog, LooseObjects

MANY = 10_000
HELD_S = 60.0


@pytest.fixture(params=["memory", "postgres"])
def loose(request: pytest.FixtureRequest, database: Database) -> LooseObjects:
    return (
        InMemoryLooseObjects(MemoryState()) if request.param == "memory" else PostgresLooseObjects(database)
    )


@pytest.fixture
def catalog(loose: LooseObjects, database: Database) -> Catalog:
    if isinstance(loose, InMemoryLooseObjects):
        return InMemoryCatalog(loose.state)
    return PostgresCatalog(database)


async def claimed(loose: LooseObjects, workspace: WorkspaceId, again_after_s: float = HELD_S) -> list[str]:
    """Those of the workspace; other tests may have left some of theirs."""
    return [id for space, id in await loose.claim_due(MANY, again_after_s) if space == workspace]


async def is_a_file(catalog: Catalog, file: StoredFile) -> bool:
    try:
        return await catalog.get_file(file.workspace_id, file.id) == file
    except NotFound:
        return False


async def test_a_reserved_object_is_on_record_and_due_in_its_time(
    loose: LooseObjects, catalog: Catalog, workspace: WorkspaceId
) -> None:
    await loose.reserve(workspace, "file-1", HELD_S)
    await loose.reserve(workspace, "file-2", 0)
    assert await catalog.recorded(workspace, ["file-1", "file-2", "file-3"]) == {"file-1", "file-2"}
    assert await claimed(loose, workspace) == ["file-2"]
    await loose.forget(workspace, "file-2")
    assert await catalog.recorded(workspace, ["file-1", "file-2"]) == {"file-1"}


async def test_who_renews_is_not_due(loose: LooseObjects, workspace: WorkspaceId) -> None:
    await loose.reserve(workspace, "file-1", 0)
    await loose.renew(workspace, "file-1", HELD_S)
    assert await claimed(loose, workspace) == []
    await loose.renew(workspace, "file-1", 0)
    await loose.renew(workspace, "file-unknown", 0)
    assert await claimed(loose, workspace) == ["file-1"]


async def test_a_claim_lasts_until_it_is_forgotten(
    loose: LooseObjects, catalog: Catalog, workspace: WorkspaceId
) -> None:
    """Whoever claimed it may be killed before the bytes are gone, or find the file store down."""
    await loose.reserve(workspace, "file-1", 0)
    assert await claimed(loose, workspace, again_after_s=HELD_S) == ["file-1"]
    assert await claimed(loose, workspace) == [], "somebody is at it"
    assert await loose.claim(workspace, "file-1")
    assert await claimed(loose, workspace, again_after_s=0) == ["file-1"]
    await loose.renew(workspace, "file-1", HELD_S)
    assert await claimed(loose, workspace, again_after_s=0) == ["file-1"], "too late to renew"
    assert await catalog.recorded(workspace, ["file-1"]) == {"file-1"}
    for _ in range(2):
        await loose.forget(workspace, "file-1")
    assert await claimed(loose, workspace) == []


async def test_the_longest_due_are_claimed_first_and_no_more_than_asked(
    loose: LooseObjects, workspace: WorkspaceId
) -> None:
    for number in (2, 1, 3):
        await loose.reserve(workspace, f"file-{number}", -1e6 * number)
    first = [await loose.claim_due(1, HELD_S) for _ in range(3)]
    assert first == [[(workspace, f"file-{number}")] for number in (3, 2, 1)]


async def test_a_reserved_file_ends_its_reservation(
    loose: LooseObjects, catalog: Catalog, workspace: WorkspaceId
) -> None:
    file = a_file(workspace)
    await loose.reserve(workspace, file.id, 0)
    await catalog.add_file(file, reserved=True)
    assert await claimed(loose, workspace) == []
    assert await catalog.get_file(workspace, file.id) == file
    assert not await loose.claim(workspace, file.id)
    assert await claimed(loose, workspace) == [], "nothing is left of the claim"


async def test_what_was_claimed_becomes_no_file(
    loose: LooseObjects, catalog: Catalog, workspace: WorkspaceId
) -> None:
    file = a_file(workspace)
    await loose.reserve(workspace, file.id, 0)
    await claimed(loose, workspace)
    for _ in range(2):
        with pytest.raises(ReservationLost):
            await catalog.add_file(file, reserved=True)
        assert not await is_a_file(catalog, file)
        await loose.forget(workspace, file.id)
    assert await loose.claim(workspace, file.id), "bytes that came after all"
    assert await catalog.recorded(workspace, [file.id]) == {file.id}


async def test_a_deleted_file_leaves_its_object(
    loose: LooseObjects, catalog: Catalog, workspace: WorkspaceId
) -> None:
    file = a_file(workspace)
    await catalog.add_file(file)
    await catalog.delete_file(workspace, file.id)
    assert await catalog.recorded(workspace, [file.id]) == {file.id}
    assert await claimed(loose, workspace) == [file.id]
    with pytest.raises(ReservationLost):
        await catalog.add_file(file, reserved=True)


async def test_another_workspace_changes_nothing(
    loose: LooseObjects, catalog: Catalog, workspace: WorkspaceId, other_workspace: WorkspaceId
) -> None:
    await loose.reserve(workspace, "file-1", HELD_S)
    await loose.renew(other_workspace, "file-1", 0)
    await loose.forget(other_workspace, "file-1")
    assert await catalog.recorded(other_workspace, ["file-1"]) == set()
    assert await loose.claim(other_workspace, "file-1")
    await catalog.add_file(replace(a_file(workspace), id="file-1"), reserved=True)


STEPS = ("record", "claim", "claim due", "renew", "delete")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(STEPS), min_size=2, max_size=5))
async def test_whatever_happens_at_once_an_object_is_kept_or_removed_and_never_both(
    loose: LooseObjects, catalog: Catalog, workspace: WorkspaceId, steps: Sequence[str]
) -> None:
    file = replace(a_file(workspace), id=f"file-{secrets.token_hex(6)}")
    await loose.reserve(workspace, file.id, 0)

    async def do(step: str) -> None:
        match step:
            case "record":
                await catalog.add_file(file, reserved=True)
            case "claim":
                if await loose.claim(workspace, file.id):
                    removed.append(step)
            case "claim due":
                if (workspace, file.id) in await loose.claim_due(MANY, HELD_S):
                    removed.append(step)
            case "renew":
                await loose.renew(workspace, file.id, HELD_S)
            case "delete":
                await catalog.delete_file(workspace, file.id)
                removed.append(step)

    removed: list[str] = []
    outcomes = await asyncio.gather(*(do(step) for step in steps), return_exceptions=True)
    for outcome in outcomes:
        assert outcome is None or isinstance(outcome, ReservationLost | NotFound | Conflict), outcome
    assert not (await is_a_file(catalog, file) and removed)
    assert await catalog.recorded(workspace, [file.id]) == {file.id}, "as long as there may be bytes"
