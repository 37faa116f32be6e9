"""Dependencies that go while files are ingested, and come back."""

import time
from collections.abc import Callable

import httpx
from tests.chaos.plant import Plant
from tests.chaos.scene import Scene
from tests.chaos.stages import jobs_under_way

Outage = Callable[[Plant, float], None]


def cut(*names: str) -> Outage:
    """Connections are reset, and refused, for so many seconds."""

    def outage(running: Plant, seconds: float) -> None:
        for name in names:
            running.networks[name].cut()
        time.sleep(seconds)
        for name in names:
            running.networks[name].restore()

    return outage


def stall(*names: str) -> Outage:
    """Nothing gets through for so many seconds, and nobody is told."""

    def outage(running: Plant, seconds: float) -> None:
        for name in names:
            running.networks[name].stall()
        time.sleep(seconds)
        for name in names:
            running.networks[name].restore()

    return outage


def full(running: Plant, seconds: float) -> None:
    """The file store refuses to store anything more."""
    running.bucket.full = True
    time.sleep(seconds)
    running.bucket.full = False


def restart(running: Plant, seconds: float) -> None:
    """The database is shut down in its immediate mode, and started again."""
    running.database.restart_at_once()
    time.sleep(seconds)


EVERY_DATABASE = ("postgres", "postgres of worker 0", "postgres of worker 1")
OUTAGES: dict[str, Outage] = {
    "database cut": cut(*EVERY_DATABASE),
    "file store cut": cut("s3"),
    "messages cut": cut("nats"),
    "file store full": full,
    "database restarted": restart,
    "a worker's database cut": cut("postgres of worker 0"),
    "database stalled": stall(*EVERY_DATABASE),
    "file store stalled": stall("s3"),
    "messages stalled": stall("nats"),
    "a worker's database stalled": stall("postgres of worker 1"),
}


def interrupt(scene: Scene, name: str, seconds: float, *, ingests: int) -> None:
    """Let the outage `name` befall a plant at work, and wait until all that was sent has ended."""
    plant, users = scene.plant, scene.users()
    with users.at_work(ingests, [scene.new_store()], side_by_side=6):
        while not jobs_under_way(plant.database):
            time.sleep(0.01)
        OUTAGES[name](plant, seconds)
        restored = time.monotonic()
        assert httpx.get(f"{plant.deployment.url}/health", trust_env=False).status_code == 200
    print(
        f"{name} for {seconds:g} s: the last of {ingests} ingests ended {time.monotonic() - restored:.1f} s "
        f"after; asked again after {dict(users.refusals)}"
    )
