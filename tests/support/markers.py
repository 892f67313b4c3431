"""Bucket markers with other words in them, as a daemon might have written them."""

import json
from collections.abc import Mapping
from typing import Any

from rlmm_daemon.codec.sealed_json import sealed, unsealed


def content_of(data: bytes) -> dict[str, Any]:
    """Return what a marker says, without its checksum."""
    return dict[str, Any](json.loads(unsealed(data)[0]))


def written(content: Mapping[str, object]) -> bytes:
    """Return the marker that says so; one of an older format has no checksum."""
    encoded = json.dumps(content).encode()
    return encoded if content["format"] in (1, 2) else sealed(encoded)


def edited(data: bytes, old: bytes, new: bytes) -> bytes:
    """Return a marker with other words in it, whose checksum holds."""
    content, has_checksum = unsealed(data)
    assert has_checksum
    assert old in content
    return sealed(content.replace(old, new))


def newer(data: bytes) -> bytes:
    """Return the marker of a version to come."""
    return written(content_of(data) | {"format": 99})
