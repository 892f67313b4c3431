"""Words of operators about the nightly job's manifests: which objects stay, and which may go.

What is restored stays for good, what is held back until somebody releases it, from the answer on.
Where a night may delete nothing by its share, an object goes by the night only in the state that an
approved manifest names. And a night that deletes leaves out nothing that was let go and is due.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: Key and ETag: one state of one object.
State = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Orders:
    """How many orders of a kind began, and how many were answered."""

    begun: int = 0
    ended: int = 0

    @property
    def over(self) -> bool:
        """Whether none may still take effect."""
        return self.begun == self.ended

    def begin(self) -> "Orders":
        """Return them with one more."""
        return Orders(self.begun + 1, self.ended)

    def end(self) -> "Orders":
        """Return them with one more answered."""
        return Orders(self.begun, self.ended + 1)


@dataclass(slots=True)
class Manifests:
    """What was said of each manifest, by its name."""

    #: Objects that stay, since their manifest was restored.
    spared: set[str] = field(default_factory=set)
    #: And those of each manifest that is held back.
    held: dict[str, frozenset[str]] = field(default_factory=dict)
    #: Objects that may go past the share of a night.
    approved: set[State] = field(default_factory=set)
    #: Manifests whose approval was answered.
    assented: set[str] = field(default_factory=set)
    #: Manifests that may be restored or held back now.
    doubted: set[str] = field(default_factory=set)
    #: Orders to keep a manifest, and to release it: an order without an end may still take effect.
    keeps: dict[str, Orders] = field(default_factory=dict)
    releases: dict[str, Orders] = field(default_factory=dict)
    #: Objects of a manifest that was released, until they go.
    released: set[str] = field(default_factory=set)
    #: What came of it all.
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def let(self) -> frozenset[str]:
        """Return the manifests that have to go when they are due."""
        return frozenset(self.assented - self.doubted)

    # Orders.

    def keeping(self, name: str) -> Orders:
        """Somebody orders that it stay; return what `hold` is to be told."""
        self.doubted.add(name)
        self.keeps[name] = self.keeps.get(name, Orders()).begin()
        return self.releases.get(name, Orders())

    def spare(self, name: str, keys: Iterable[str]) -> None:
        """An order to restore was answered: these objects stay."""
        self.keeps[name] = self.keeps[name].end()
        self.spared.update(keys)

    def hold(self, name: str, keys: Iterable[str], before: Orders) -> None:
        """An order to hold back was answered: these stay, unless a release lay beside it."""
        self.keeps[name] = self.keeps[name].end()
        if before.over and before == self.releases.get(name, Orders()):
            self.held[name] = frozenset(keys)
            self._count("held back")

    def releasing(self, name: str) -> Orders:
        """Somebody orders a release; return what `was_released` is to be told."""
        self.releases[name] = self.releases.get(name, Orders()).begin()
        self.released |= self.held.pop(name, frozenset())
        return self.keeps.get(name, Orders())

    def was_released(self, name: str, before: Orders) -> None:
        """And was answered: it is held no more, unless somebody kept it meanwhile."""
        self.releases[name] = self.releases[name].end()
        if before.over and before == self.keeps.get(name, Orders()):
            self.doubted.discard(name)

    def approving(self, states: Iterable[State]) -> None:
        """Somebody orders that these go past the share."""
        self.approved |= set(states)

    def was_approved(self, name: str) -> None:
        """And was answered."""
        self.assented.add(name)

    # Judgements.

    def why_kept(self, key: str) -> str:
        """Return why an object must not go; "": nobody said so."""
        if key in self.spared:
            return "its manifest was restored"
        if any(key in keys for keys in self.held.values()):
            return "its manifest is held back"
        return ""

    def deleted(self, key: str, etag: str, *, tight: bool) -> str:
        """A night deletes an object; return why it must not, "": it may."""
        if key in self.released:
            self.released.discard(key)
            self._count("gone after a release")
        if tight and (key, etag) not in self.approved:
            return "no approved manifest names it, and it is above the share"
        if tight:
            self._count("gone by an approval")
        return ""

    def planned(
        self,
        condemned: Collection[Any],
        deletes: Collection[Any],
        due: Mapping[str, Any],
        let: frozenset[str],
    ) -> str:
        """A night plans its deletes; return what of the due manifests it leaves out, and must not.

        Manifests that somebody may have kept are nobody's promise to go; `let` are those that were
        before the night read them.
        """
        left = {e.identity for e in condemned} - {e.identity for e in deletes}
        doubted = {e.key for name in self.doubted & due.keys() for e in due[name].entries}
        for name, manifest in due.items():
            stays = [e for e in manifest.entries if e.identity in left]
            self._count("kept when due", sum(bool(self.why_kept(e.key)) for e in stays))
            if name in self.let & let and any(e.key not in doubted for e in stays):
                return f"manifest {name} is approved and due, and a night leaves it alone"
        return ""

    def _count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number
