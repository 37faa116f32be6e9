"""`kill -9` of whatever runs, at moments of every kind."""

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from tests.chaos.plant import LEASE_S, Plant
from tests.chaos.scene import Scene
from tests.chaos.stages import STAGES, Stage, furthest, jobs_under_way
from tests.chaos.users import Users

Victim = Literal["worker", "API", "database", "connection"]
"""`connection` is one process of the database server, whose end makes the server restart itself."""

AIM_S = 1.5
LONGEST_AIM_S = 60.0
"""How long a killer of workers waits for a job to come into the stage in which it wants to hit it, and how
long for any worker to have a job."""
FREEZE_EVERY = 20
FEW_FAILURES = 4
"""While a job has lost as many workers none is killed: with the fifth it fails, as it should. Nothing else
counts for long, neither a database that is away for longer than a lease nor a worker that is frozen; but only
a living worker can have such a count taken back, whether it runs the job or another does by now."""


@dataclass(slots=True)
class Killer:
    plant: Plant
    users: Users
    dice: random.Random
    killed: Counter[Victim] = field(default_factory=Counter)
    stages: Counter[str] = field(default_factory=Counter)
    """How far the furthest job had come that was hit; for the API what it was being asked."""
    freezes: int = 0

    def kill(self) -> None:
        """One kill, and the start of what was killed."""
        self._wait_for_work()
        victim = self.dice.choices(("worker", "API", "database", "connection"), (45, 12, 23, 20))[0]
        match victim:
            case "worker":
                self._kill_a_worker(self.dice.choice(STAGES))
            case "API":
                self.plant.deployment.wait_until_ready([self.plant.api])
                time.sleep(self.dice.uniform(0, 0.3))
                doing = [what for what, count in self.users.doing.items() if count]
                self._count(
                    victim, min(doing, key=("uploading", "attaching", "asking").index, default="idle")
                )
                self.plant.api.kill()
                self.plant.start_api()
            case "database" | "connection":
                time.sleep(self.dice.uniform(0, 0.3))
                self._count(victim, furthest(jobs_under_way(self.plant.database)) or "idle")
                if victim == "connection":
                    self.plant.database.kill_a_backend(self.dice)
                else:
                    self.plant.database.kill()
                    time.sleep(self.dice.choice((0, 0.3, LEASE_S * 1.2)))
                    self.plant.database.start()

    def freeze_a_worker(self) -> None:
        """One that sleeps longer than its lease lasts wakes up to find its job in other hands."""
        number = self.dice.randrange(len(self.plant.workers))
        self.plant.freeze(number)
        self.freezes += 1
        time.sleep(LEASE_S * 1.5)
        self.plant.thaw(number)

    def _wait_for_work(self) -> None:
        """Until there is something to be lost."""
        while self.users.are_busy:
            if self.users.doing["uploading"] or jobs_under_way(self.plant.database):
                return
            time.sleep(0.01)

    def _kill_a_worker(self, wanted: Stage) -> None:
        number, stage = self._aim(wanted)
        worker = self.plant.workers[number]
        worker.kill()
        self._count("worker", stage or "idle")
        self.plant.start_worker(number)

    def _aim(self, wanted: Stage) -> tuple[int, Stage | None]:
        """A worker whose job has come so far; when none does in time, any that has a job."""
        began = time.monotonic()
        while True:
            at = self._stages_of_workers()
            waited = time.monotonic() - began
            for fit in (
                [number for number, stage in at.items() if stage == wanted],
                [number for number, stage in at.items() if stage not in (None, "queued") and waited > AIM_S],
                [number for number in at if waited > LONGEST_AIM_S],
            ):
                if fit:
                    number = self.dice.choice(fit)
                    return number, at[number]

    def _stages_of_workers(self) -> dict[int, Stage | None]:
        """How far the job of each worker has come that may be killed; `queued`: it has none and some wait."""
        jobs = jobs_under_way(self.plant.database)
        if any(job.failures >= FEW_FAILURES for job in jobs):
            return {}
        idle: Stage | None = "queued" if any(job.stage == "queued" for job in jobs) else None
        return {
            number: furthest([job for job in jobs if job.worker_pid == worker.popen.pid]) or idle
            for number, worker in enumerate(self.plant.workers)
        }

    def _count(self, victim: Victim, stage: str) -> None:
        self.killed[victim] += 1
        self.stages[f"{'API' if victim == 'API' else 'job'} {stage}"] += 1

    def report(self) -> str:
        return (
            f"{self.killed.total()} kills {dict(self.killed)} hit {dict(sorted(self.stages.items()))}; "
            f"{self.freezes} freezes"
        )


def kill_at_random(scene: Scene, *, kills: int, ingests: int) -> None:
    """Ingest so many files while so many times something is killed that is at work."""
    users, before = scene.users(), len(scene.ingests)
    killer = Killer(scene.plant, users, scene.dice)
    began = time.monotonic()
    with users.at_work(
        ingests, [scene.new_store() for _ in range(3)], side_by_side=3 * len(scene.plant.workers)
    ):
        while killer.killed.total() < kills and users.are_busy:
            killer.kill()
            if killer.killed.total() % FREEZE_EVERY == FREEZE_EVERY // 2:
                killer.freeze_a_worker()
                print(f"{time.monotonic() - began:.0f} s: {killer.report()}", flush=True)
    took = sorted(ingest.took_s for ingest in scene.ingests[before:])
    print(
        f"{killer.report()}\n{len(took)} ingests in {time.monotonic() - began:.0f} s; from attaching to the "
        f"end {took[len(took) // 2]:.1f} s in the middle, {took[-1]:.1f} s at most; asked again after "
        f"{dict(users.refusals)}"
    )
    assert killer.killed.total() == kills, "the ingests ended before the kills"
