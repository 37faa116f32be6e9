"""A plant and what is needed to judge it: documents, what they become in peace, all that was ingested."""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.corpus import Document
from tests.chaos.invariants import fingerprints, violations, wait_until_quiet, wait_until_tidy
from tests.chaos.messages import Messages, messages
from tests.chaos.plant import Plant, plant
from tests.chaos.users import Ingest, Users

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

    def check(self, *, hurry: bool = False) -> None:
        """All that the invariants say, once everything is quiet and workers have tidied up.

        In a `hurry` the reservations of killed uploads run out at once, not after minutes.
        """
        self.plant.deployment.wait_until_ready([self.plant.api])
        # What a killed process had taken and not settled is delivered again when the broker's patience ends.
        deadline = time.monotonic() + REDELIVERED_S
        while self.messages.waiting() and time.monotonic() < deadline:
            time.sleep(0.2)
        settled_s = wait_until_quiet(self.plant)
        unknown = self._delete_unknown()
        [(loose,)] = self.plant.database.rows("select count(*) from loose_objects")
        if hurry:
            self.plant.database.rows("update loose_objects set due_at = now() returning 1")
        tidy_s = wait_until_tidy(self.plant)
        broken = violations(self.plant, self.ingests, self.reference, self.messages, self.refused)
        print(
            f"{len(self.ingests)} ingests: quiet {settled_s:.1f} s after the last one ended; {unknown} files "
            f"of lost answers deleted; {loose} objects of nobody gone after {tidy_s:.1f} s; broken: {broken}"
        )
        assert broken == []

    def _delete_unknown(self) -> int:
        """A file whose upload was never answered is whole and listed; its user may delete it. How many."""
        client = self.plant.deployment.client()
        attached = {row[0] for row in self.plant.database.rows("select file_id from vector_store_files")}
        unknown = [file.id for file in client.files.list() if file.id not in attached]
        for file_id in unknown:
            client.files.delete(file_id)
        return len(unknown)


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
