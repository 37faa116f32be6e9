"""Ingest requests that come twice, too early and out of order, over a network that breaks."""

import time

from tests.chaos.scene import Scene
from tests.chaos.users import Ingest

TAKEN_WITHIN_S = 120.0
"""A message that was on its way when the network broke is delivered again after half a minute."""


def send_in_disorder(scene: Scene, *, files: int, cuts: int) -> None:
    dice, plant, messages = scene.dice, scene.plant, scene.messages
    users, client, store = scene.users(), plant.deployment.client(), scene.new_store()
    too_early = f"file-of-tomorrow-{len(scene.refused)}"
    messages.request(too_early, store)
    scene.refused.append(too_early)

    small = [document for document in scene.documents if len(document.content) < 20_000]
    ingests = [Ingest(dice.choice(small), store, messages=dice.randint(1, 3)) for _ in range(files)]
    for ingest in ingests:
        ingest.file_id = users.send(client, ingest)
    requests = [ingest.file_id for ingest in ingests for _ in range(ingest.messages)]
    dice.shuffle(requests)
    cut_at = set(dice.sample(range(len(requests)), cuts))
    for number, file_id in enumerate(requests):
        if number in cut_at:
            plant.networks["nats"].cut()
        messages.request(file_id, store)
        if number in cut_at:
            time.sleep(0.2)
            plant.networks["nats"].restore()
    for ingest in ingests:
        ingest.status = users.wait(client, ingest)
    deadline = time.monotonic() + TAKEN_WITHIN_S
    while messages.waiting():
        assert time.monotonic() < deadline, "messages are never taken"
        time.sleep(0.1)
    scene.ingests += ingests
    print(f"{len(requests)} requests for {files} files over {cuts} cuts")
