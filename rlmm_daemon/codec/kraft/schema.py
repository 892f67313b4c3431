"""Kafka's message tables: fields by name, type and version, and how a message of them is packed.

A message is a mapping of Kafka's own field names to plain values, so that a table can be laid
beside the JSON in Kafka's sources. Absent fields are written with their default; what the version
has not is left out, as all fields are that Kafka calls ignorable.
Source: KIP-482 (flexible versions), MessageDataGenerator.
"""

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from rlmm_daemon.codec.primitives import INT32_MAX, STRING_BYTES_MAX, Cursor, uvarint
from rlmm_daemon.domain.errors import InvalidArgument, Malformed

Message: TypeAlias = dict[str, Any]

#: Wider than what any request of a quorum holds: of arrays within arrays each is bounded by the
#: bytes that are left.
_TAGS_MAX: Final = 64


class Form(NamedTuple):
    """How a version packs: its number, and whether it is flexible (compact, with tags)."""

    version: int
    flexible: bool


class Type(Protocol):
    """Something that is packed and read."""

    @property
    def default(self) -> Any:
        """What stands there where nothing was said."""

    @property
    def bytes_min(self) -> int:
        """The fewest bytes that one takes."""

    def write(self, out: bytearray, value: Any, form: Form, /) -> None:
        """Append a value; struct.error, or an error of the domain, where it does not fit."""

    def read(self, cursor: Cursor, what: str, form: Form, /) -> Any:
        """Return the next value, or raise Malformed."""


class _Number:
    default = 0

    def __init__(self, layout: str) -> None:
        self._layout = struct.Struct(layout)
        self.bytes_min = self._layout.size

    def write(self, out: bytearray, value: Any, _form: Form, /) -> None:
        out += self._layout.pack(value)

    def read(self, cursor: Cursor, what: str, _form: Form, /) -> int:
        return cursor.number(self._layout, what)


class _Bool:
    default = False
    bytes_min = 1

    def write(self, out: bytearray, value: Any, _form: Form, /) -> None:
        out.append(1 if value else 0)

    def read(self, cursor: Cursor, what: str, _form: Form, /) -> bool:
        return cursor.take(1, what) != b"\0"


class _Uuid:
    default: bytes = bytes(16)
    bytes_min = 16

    def write(self, out: bytearray, value: Any, _form: Form, /) -> None:
        if len(value) != self.bytes_min:
            raise InvalidArgument(f"{len(value)} bytes are no uuid")
        out += value

    def read(self, cursor: Cursor, what: str, _form: Form, /) -> bytes:
        return cursor.uuid(what)


class _Bytes:
    """Bytes, of records too; null only where it is allowed."""

    bytes_min = 1

    def __init__(self, *, nullable: bool = False) -> None:
        self._nullable = nullable
        self.default = None if nullable else b""

    def write(self, out: bytearray, value: Any, form: Form, /) -> None:
        if value is None and not self._nullable:
            raise InvalidArgument("null, where bytes must stand")
        _write_size(out, -1 if value is None else len(value), form)
        out += value or b""

    def read(self, cursor: Cursor, what: str, form: Form, /) -> bytes | None:
        size = _read_size(cursor, what, form)
        if size < 0 and not self._nullable:
            raise cursor.fail(f"{what} is null")
        return None if size < 0 else cursor.take(size, what)


class _String:
    """Text; in versions that are not flexible, its size takes two bytes."""

    bytes_min = 1
    _short = struct.Struct(">h")

    def __init__(self, *, nullable: bool = False) -> None:
        self._nullable = nullable
        self.default = None if nullable else ""

    def write(self, out: bytearray, value: Any, form: Form, /) -> None:
        if value is None and not self._nullable:
            raise InvalidArgument("null, where text must stand")
        packed = b"" if value is None else value.encode("utf-8")
        size = -1 if value is None else len(packed)
        if size > STRING_BYTES_MAX:
            raise InvalidArgument(f"text of {size} bytes: {STRING_BYTES_MAX} are the most")
        if form.flexible:
            out += uvarint(size + 1)
        else:
            out += self._short.pack(size)
        out += packed

    def read(self, cursor: Cursor, what: str, form: Form, /) -> str | None:
        size = cursor.uvarint(what) - 1 if form.flexible else cursor.number(self._short, what)
        if size < 0:
            if not self._nullable:
                raise cursor.fail(f"{what} is null")
            return None
        if size > STRING_BYTES_MAX:
            raise cursor.fail(f"{what} is {size} bytes long, more than {STRING_BYTES_MAX}")
        try:
            return cursor.take(size, what).decode("utf-8")
        except UnicodeDecodeError as error:
            raise cursor.fail(f"{what} is not UTF-8: {error.reason}") from error


class Array:
    """Any number of one type."""

    default: tuple[Any, ...] = ()
    bytes_min = 1

    def __init__(self, of: Type, *, nullable: bool = False) -> None:
        self._of = of
        self._nullable = nullable

    def write(self, out: bytearray, value: Any, form: Form, /) -> None:
        """Append all of them behind their number."""
        if value is None and not self._nullable:
            raise InvalidArgument("null, where an array must stand")
        _write_size(out, -1 if value is None else len(value), form)
        for each in value or ():
            self._of.write(out, each, form)

    def read(self, cursor: Cursor, what: str, form: Form, /) -> tuple[Any, ...] | None:
        """Return them; a number that the remaining bytes can't hold is refused before."""
        count = _read_size(cursor, what, form)
        if count < 0:
            if not self._nullable:
                raise cursor.fail(f"{what} is null")
            return None
        if count * self._of.bytes_min > cursor.remaining:
            raise cursor.fail(f"{what} claims {count} elements in {cursor.remaining} bytes")
        return tuple(self._of.read(cursor, what, form) for _ in range(count))


class Field(NamedTuple):
    """A field of a message: in all versions from `since` on; with a tag, behind all others."""

    name: str
    type: Type
    since: int = 0
    tag: int | None = None
    default: Any = None
    #: The last version that has it.
    until: int = INT32_MAX

    @property
    def usual(self) -> Any:
        """What it is where nothing was said."""
        return self.type.default if self.default is None else self.default


class Fields:
    """A structure."""

    bytes_min = 1

    def __init__(self, *fields: Field) -> None:
        self.fields = fields
        self._names = frozenset(each.name for each in fields)
        self._of = lru_cache(maxsize=None)(self._fields_of)

    @property
    def default(self) -> Any:
        """All fields as they are where nothing was said."""
        return {}

    def full(self, message: Mapping[str, Any], version: int) -> Message:
        """Return a message with every field that the version has."""
        plain, tagged = self._of(version)
        return {each.name: message.get(each.name, each.usual) for each in (*plain, *tagged)}

    def _fields_of(self, version: int) -> tuple[Sequence[Field], Sequence[Field]]:
        known = [each for each in self.fields if each.since <= version <= each.until]
        tagged = sorted((each.tag, each) for each in known if each.tag is not None)
        return [each for each in known if each.tag is None], [each for _, each in tagged]

    def write(self, out: bytearray, value: Any, form: Form, /) -> None:
        """Append the fields, then the tagged ones that are not as they usually are."""
        plain, tagged = self._of(form.version)
        self._refuse_others(value)
        for each in plain:
            try:
                each.type.write(out, value.get(each.name, each.usual), form)
            except (struct.error, TypeError, AttributeError) as error:
                raise InvalidArgument(f"{each.name} can't be packed: {error}") from error
        if form.flexible:
            self._write_tags(out, value, tagged, form)

    def _refuse_others(self, value: Mapping[str, Any]) -> None:
        for name in value:
            if name not in self._names:
                raise InvalidArgument(f"no field is called {name}")

    def _write_tags(
        self, out: bytearray, value: Mapping[str, Any], tagged: Sequence[Field], form: Form
    ) -> None:
        present: list[tuple[int, bytearray]] = []
        for each in tagged:
            said = value.get(each.name, each.usual)
            if said == each.usual or (isinstance(each.type, Fields) and each.type.is_usual(said)):
                continue
            packed = bytearray()
            each.type.write(packed, said, form)
            assert each.tag is not None, "tagged fields have tags"
            present.append((each.tag, packed))
        out += uvarint(len(present))
        for tag, packed in present:
            out += uvarint(tag) + uvarint(len(packed)) + packed

    def is_usual(self, value: Mapping[str, Any]) -> bool:
        """Whether no field says anything: a tagged structure is left out then."""
        usual = {each.name: each.usual for each in self.fields}
        return all(said == usual.get(name) for name, said in value.items())

    def read(self, cursor: Cursor, what: str, form: Form, /) -> Message:
        """Return the next structure with every field that the version has."""
        plain, tagged = self._of(form.version)
        message = {each.name: each.type.read(cursor, each.name, form) for each in plain}
        for each in tagged:
            message[each.name] = each.usual
            if isinstance(each.type, Fields):
                message[each.name] = each.type.full({}, form.version)
        if form.flexible:
            self._read_tags(message, cursor, what, form)
        return message

    def _read_tags(self, message: Message, cursor: Cursor, what: str, form: Form) -> None:
        _, tagged = self._of(form.version)
        known = {each.tag: each for each in tagged}
        for count, (tag, packed) in enumerate(cursor.tags(what)):
            if count >= _TAGS_MAX:
                raise cursor.fail(f"{what} has more than {_TAGS_MAX} tags")
            field = known.get(tag)
            if field is not None:
                inner = Cursor(packed)
                message[field.name] = field.type.read(inner, field.name, form)
                inner.finish()


_LENGTH: Final = struct.Struct(">i")


def _write_size(out: bytearray, size: int, form: Form) -> None:
    out += uvarint(size + 1) if form.flexible else _LENGTH.pack(size)


def _read_size(cursor: Cursor, what: str, form: Form) -> int:
    return cursor.uvarint(what) - 1 if form.flexible else cursor.number(_LENGTH, what)


INT8: Final = _Number(">b")
INT16: Final = _Number(">h")
UINT16: Final = _Number(">H")
INT32: Final = _Number(">i")
INT64: Final = _Number(">q")
BOOL: Final = _Bool()
UUID: Final = _Uuid()
STRING: Final = _String()
NULLABLE_STRING: Final = _String(nullable=True)
BYTES: Final = _Bytes()
NULLABLE_BYTES: Final = _Bytes(nullable=True)


class Api(NamedTuple):
    """A request and its answer, and the versions of them that are spoken here."""

    key: int
    name: str
    first: int
    last: int
    request: Fields
    answer: Fields
    #: The first flexible version.
    flexible: int = 0
    #: ApiVersions alone answers with a header that everybody can read.
    old_answer_header: bool = False

    def form(self, version: int) -> Form:
        """Return how a version packs."""
        return Form(version, version >= self.flexible)

    def pack_request(self, version: int, message: Mapping[str, Any]) -> bytes:
        """Return a request's body.

        Raises:
            InvalidArgument: a field that it has not, or a value that its field can't hold.
        """
        return _packed(self.request, message, self.form(version))

    def pack_answer(self, version: int, message: Mapping[str, Any]) -> bytes:
        """Return an answer's body; InvalidArgument: as `pack_request`."""
        return _packed(self.answer, message, self.form(version))

    def read_request(self, version: int, body: bytes) -> Message:
        """Return what a request says.

        Raises:
            Malformed: it is none, with the field and the position.
        """
        return _read(self.request, body, f"{self.name} request", self.form(version))

    def read_answer(self, version: int, body: bytes) -> Message:
        """Return what an answer says; Malformed: as `read_request`."""
        return _read(self.answer, body, f"{self.name} answer", self.form(version))


def _packed(fields: Fields, message: Mapping[str, Any], form: Form) -> bytes:
    out = bytearray()
    fields.write(out, message, form)
    return bytes(out)


def _read(fields: Fields, body: bytes, what: str, form: Form) -> Message:
    cursor = Cursor(body)
    message = fields.read(cursor, what, form)
    try:
        cursor.finish()
    except Malformed as error:
        raise Malformed(f"{what}: {error.message}", position=cursor.position) from error
    return message
