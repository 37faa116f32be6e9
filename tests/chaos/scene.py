"""A plant and what is needed to judge it: documents, what they become in peace, all that was ingested."""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.corpus import Document
from tests.chaos.invariants import fingerprints, violations, wait_until_quiet
from tests.chaos.messages import Messages, messages
from tests.chaos.plant import Plant, plant
from tests.chaos.users import Ingest, Users

from sherlock.config import Settings
from sherlock.wiring import open_services

REDELIVERED_S = 90.0
"""Three times the broker's patience."""


@dataclass(slots=True)
class Scene:
    plant: Plant
    messages: Messages
    documents: Sequence[Document]
    dice: random.Random
    reference: Mapping[Document, str] = field(default_factory=dict)
    """What an ingest makes of each document when nothing disturbs it."""
    ingests: list[Ingest] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """`request_id`s of messages that could never be done."""

    def users(self) -> Users:
        """New ones, whose ingests are also the scene's."""
        return Users(self.plant, self.messages, self.documents, self.dice.randrange(1 << 32), self.ingests)

    def new_store(self) -> str:
        return self.plant.deployment.client().vector_stores.create().id

    def check(self) -> None:
        """All that the invariants say, once everything is quiet."""
        self.plant.deployment.wait_until_ready([self.plant.api])
        # What a killed process had taken and not settled is delivered again when the broker's patience ends.
        deadline = time.monotonic() + REDELIVERED_S
        while self.messages.waiting() and time.monotonic() < deadline:
            time.sleep(0.2)
        settled_s = wait_until_quiet(self.plant)
        unknown, reserved, orphans = self._tidy()
        broken = violations(self.plant, self.ingests, self.reference, self.messages, self.refused)
        print(
            f"{len(self.ingests)} ingests: quiet {settled_s:.1f} s after the last one ended; tidied up: "
            f"{unknown} files of lost answers, {reserved} reserved parts, {orphans} unrecorded objects; "
            f"broken: {broken}"
        )
        assert broken == []

    def _tidy(self) -> tuple[int, int, int]:
        """Do what users, time and operators do about what was killed half way; how much of each it was.

        A file whose upload was never answered is whole and listed, and its user may delete it. An object that
        was reserved for a part is on record, and goes after a day. Bytes that were stored when the API was
        killed before it wrote their record are what `sherlock gc` is for.
        """
        client = self.plant.deployment.client()
        attached = {row[0] for row in self.plant.database.rows("select file_id from vector_store_files")}
        unknown = [file.id for file in client.files.list() if file.id not in attached]
        for file_id in unknown:
            client.files.delete(file_id)
        a_day_passes = "update upload_objects set created_at = created_at - interval '25 hours' returning 1"
        reserved = self.plant.database.rows(a_day_passes)
        settings = {
            name.removeprefix("SHERLOCK_").lower(): value
            for name, value in self.plant.deployment.environ.items()
            if name.startswith("SHERLOCK_")
        }

        async def sweep() -> int:
            async with open_services(Settings(**settings)) as services:  # type: ignore[arg-type]
                await services.require_rag().housekeeper.run_once()
                return await services.require_rag().files.sweep(grace_s=0)

        return len(unknown), len(reserved), self.plant.background.run(sweep())


@contextmanager
def scene(
    folder: Path, dice: random.Random, documents: Sequence[Document], *, workers: int
) -> Iterator[Scene]:
    with plant(folder, workers=workers) as running, messages(running) as sent:
        made = Scene(running, sent, documents, dice)
        made.reference = _undisturbed(made)
        yield made


def _undisturbed(scene: Scene) -> Mapping[Document, str]:
    """Ingest each document in peace, which also proves that the plant works."""
    users, client, store = scene.users(), scene.plant.deployment.client(), scene.new_store()
    ingests = [Ingest(document, store) for document in scene.documents]
    for ingest in ingests:
        ingest.file_id = users.send(client, ingest)
        users.attach(client, ingest)
    for ingest in ingests:
        assert users.wait(client, ingest) == ingest.document.status, ingest.document.name
    made = fingerprints(scene.plant)
    return {ingest.document: made[(store, ingest.file_id)] for ingest in ingests}
