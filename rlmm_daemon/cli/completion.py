"""Names that a shell completes, asked of the daemon: topics, partitions, segment ids.

Whoever presses the tabulator waits about a second at most, and is told nothing of what failed: what
is known by then is offered. Names that Kafka would not take are left out, as a shell reads them.
"""

import os
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from time import monotonic
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import CompletionItem

from rlmm_daemon.cli.options import find_socket
from rlmm_daemon.domain.errors import InvalidArgument, RlmmError
from rlmm_daemon.domain.ids import TopicIdPartition, require_topic_name, uuid_text

if TYPE_CHECKING:
    from rlmm_daemon.client import Client

_SECONDS: Final = 1.0
#: More are no help on a screen.
_OFFERED_MAX: Final = 200

Items = list[CompletionItem]
#: Names, and what is said beside each.
_Names = Generator[tuple[str, str | None], None, None]


def partitions(ctx: click.Context, _parameter: click.Parameter, typed: str) -> Items:
    """Offer `topic-partition` of each user partition that the daemon knows."""

    def names(client: "Client") -> _Names:
        return ((f"{each.topic}-{each.partition}", None) for each in _lawful(client))

    return _offered(ctx, typed, names)


def topics(ctx: click.Context, _parameter: click.Parameter, typed: str) -> Items:
    """Offer the names of topics."""

    def names(client: "Client") -> _Names:
        return ((each.topic, None) for each in _lawful(client))

    return _offered(ctx, typed, names)


def topic_ids(ctx: click.Context, _parameter: click.Parameter, typed: str) -> Items:
    """Offer the ids of topics, beside their names."""

    def names(client: "Client") -> _Names:
        return ((uuid_text(each.topic_id), each.topic) for each in _lawful(client))

    return _offered(ctx, typed, names)


def paused(ctx: click.Context, _parameter: click.Parameter, typed: str) -> Items:
    """Offer the topics whose copies are paused."""

    def names(client: "Client") -> _Names:
        return ((each["topic"], None) for each in client.status()["paused"]["topics"])

    return _offered(ctx, typed, names)


def segment_ids(ctx: click.Context, _parameter: click.Parameter, typed: str) -> Items:
    """Offer the ids of the segments of the partition that was typed before."""
    partition = ctx.params.get("partition")

    def names(client: "Client") -> _Names:
        for each in client.segments(partition or "", timeout_seconds=_SECONDS):
            offsets = f"{each.start_offset}-{each.end_offset}"
            yield uuid_text(each.segment_id), f"{offsets} {each.state.name}"

    return _offered(ctx, typed, names)


def _lawful(client: "Client") -> Generator[TopicIdPartition, None, None]:
    for each in client.user_partitions():
        with suppress(InvalidArgument):
            require_topic_name(each.partition.topic)
            yield each.partition.to_domain()


def _offered(ctx: click.Context, typed: str, names: Callable[["Client"], _Names]) -> Items:
    """Return those that begin as was typed, in order."""
    # Imported late: most of what a shell completes needs no daemon.
    from rlmm_daemon.client import Client, ClientOptions

    options = ClientOptions(client="rlmm-completion", timeout_seconds=_SECONDS)
    found, until = dict[str, str | None](), monotonic() + _SECONDS
    with suppress(RlmmError, OSError, click.UsageError):
        path = find_socket(ctx.params.get("socket"), os.environ)
        with Client(path, options) as client, closing(names(client)) as told:
            for name, about in told:
                if name.startswith(typed):
                    found[name] = about
                if len(found) >= _OFFERED_MAX or monotonic() > until:
                    break
    return [CompletionItem(name, help=about) for name, about in sorted(found.items())]
