"""Commands about the nightly job's manifests as they are typed: restore, hold, release, approve.

What comes of each is decided by the job's own code; the truth is told what may go before an order
is sent, and what stays once it is answered.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.operators import offline
from tests.simulation.operators.night import job

if TYPE_CHECKING:
    from tests.simulation.operators.people import Person, Words


async def restore(person: "Person", words: "Words") -> Any:
    """`rlmm reconcile restore`."""
    (name,) = words
    person.books.manifests.keeping(name)
    manifest = await _kept(lambda storage: job.quarantine.restore(storage, name))
    person.books.manifests.spare(name, _there(person, manifest))
    return len(manifest.entries)


async def hold(person: "Person", words: "Words") -> Any:
    """`rlmm reconcile hold`."""
    name, said = words[0], person.books.manifests
    if "--execute" not in words:
        return await _looked_at(name)
    before = said.keeping(name)
    manifest = await _kept(
        lambda storage: job.quarantine.change(
            storage, name, lambda known: job.manifest_orders.held(known, _word())
        )
    )
    said.hold(name, _there(person, manifest), before)
    return len(manifest.entries)


async def release(person: "Person", words: "Words") -> Any:
    """`rlmm reconcile release`."""
    name, said = words[0], person.books.manifests
    if "--execute" not in words:
        return await _looked_at(name)
    before = said.releasing(name)
    await _changed(name, lambda known: job.manifest_orders.released(known, name))
    said.was_released(name, before)
    return name


async def approve(person: "Person", words: "Words") -> Any:
    """`rlmm reconcile approve`."""
    name, said = words[0], person.books.manifests
    if "--execute" not in words:
        return await _looked_at(name)
    if (manifest := _quarantined(person, name)) is not None:
        said.approving((entry.key, entry.etag) for entry in manifest.entries)
    await _changed(name, lambda known: job.manifest_orders.approved(known, name, _word()))
    said.was_approved(name)
    return name


async def _kept(change: Callable[[Any], Awaitable[Any]]) -> Any:
    """Do what `reconcile restore` and `hold` do; from their answer on nothing of it goes."""
    async with job.control.opened(offline.config()) as storage:
        manifest = await change(storage)
        clock = await job.storage_time.read(storage)
        await job.lease.wait_out(storage, clock.now_ms)
        return manifest


def _there(person: "Person", manifest: Any) -> list[str]:
    """Return what is there as it was when an order to spare it is answered."""
    objects = person.daemon.world.bucket.objects
    stored = ((entry, objects.get(entry.key)) for entry in manifest.entries)
    return [entry.key for entry, found in stored if found and found.etag == entry.etag]


def _quarantined(person: "Person", name: str) -> Any:
    """Return a manifest as it lies in the bucket now; None: there is none."""
    key = job.quarantine.MANIFESTS + name
    stored = person.daemon.world.bucket.objects.get(key)
    return None if stored is None else job.quarantine.decoded(stored.body, key)


def _word() -> Any:
    return job.quarantine.ManifestWord(by="somebody", at_ms=0)


async def _looked_at(name: str) -> Any:
    """Say what a command would do, and do nothing."""
    async with job.control.opened(offline.config()) as storage:
        manifest, _ = await job.quarantine.one(storage, name)
    return len(manifest.entries)


async def _changed(name: str, change: Callable[[Any], Any]) -> None:
    async with job.control.opened(offline.config()) as storage:
        await job.quarantine.change(storage, name, change)
