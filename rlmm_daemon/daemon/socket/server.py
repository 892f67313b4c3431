"""The Unix socket: accepts, asks for `hello`, hands each connection to its session."""

import asyncio
import functools
import socket
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec
import structlog
from msgspec.structs import replace

from rlmm_daemon.codec import api, frames
from rlmm_daemon.daemon.base.announcing import Announcing
from rlmm_daemon.daemon.base.services import Services
from rlmm_daemon.daemon.socket.admission import Shared, begun
from rlmm_daemon.daemon.socket.bulk import BulkSession
from rlmm_daemon.daemon.socket.greeting import (
    DaemonIdentity,
    Introduction,
    Plugin,
    Role,
    introduce,
    verify,
)
from rlmm_daemon.daemon.socket.limits import ServerOptions, ServerStats
from rlmm_daemon.daemon.socket.listening import Listener
from rlmm_daemon.daemon.socket.rights import peer_of
from rlmm_daemon.daemon.socket.session import Session
from rlmm_daemon.domain.errors import (
    InvalidArgument,
    Malformed,
    NotReady,
    Overloaded,
    RlmmError,
    TimedOut,
    Unauthorized,
)
from rlmm_daemon.domain.ids import BrokerId

_HELLO: Final = "hello"
_HELLO_BYTES_MAX: Final = 16 * 1024
_ACCEPT_PAUSE_SECONDS: Final = 0.1
_decode_hello: Final = msgspec.msgpack.Decoder(api.HelloParams).decode

_log = structlog.get_logger(__name__)


class _Stopping(Exception):
    """An order to the server's group, not a fault."""


class Server:
    """Serves one socket: `listen`, then `run` until `stop`; `drain` and `finish` come before it.

    A bug in a handler ends its request as `internal_error`; a partition's crash is raised from
    `run`.
    """

    def __init__(
        self,
        options: ServerOptions,
        services: Services,
        *,
        broker_id: BrokerId,
        cluster_id: str | None,
        event_log: str,
        version: str,
    ) -> None:
        self._options = options
        self._services = services
        self._event_log = event_log
        self._version = version
        self._identity = DaemonIdentity(broker_id, cluster_id)
        self._listener: Listener | None = None
        self._stop = asyncio.Event()
        self._accepting: asyncio.Task[None] | None = None
        self._sessions: set[Session] = set()
        #: Of the last storage manager that said hello.
        self._storage_incarnation_ms: int | None = None
        self._stats = ServerStats()
        self._bugs = services.manager.bugs
        self._shared: Shared | None = None

    @property
    def stats(self) -> ServerStats:
        """The counters; the same object for the server's whole life."""
        return self._stats

    def buffered_bytes(self) -> int:
        """Return how many bytes of answers wait for their readers."""
        return sum(session.buffered_bytes for session in self._sessions)

    def listen(self) -> None:
        """Make the socket; connections wait in the kernel until `run`.

        Raises:
            ConfigError: see `Listener`.
        """
        self._listener = Listener(
            self._options.path, mode=self._options.mode, group_gid=self._options.group_gid
        )

    async def run(self) -> None:
        """Serve until `stop`; raises a partition's crash that a handler met."""
        if self._listener is None:
            self.listen()
        try:
            async with asyncio.TaskGroup() as tasks:
                turns = self._services.manager.turns
                announcing = Announcing(turns, partial(begun, tasks, name="server.announcing"))
                self._shared = Shared(
                    self._options, self._services, self._identity, tasks, announcing,
                    self._stats,
                    turns=turns,
                    bugs=self._bugs,
                )  # fmt: skip
                self._accepting = tasks.create_task(self._accept(tasks), name="server.accept")
                await self._stop.wait()
                for session in tuple(self._sessions):
                    session.close()
                raise _Stopping
        except* _Stopping:
            pass
        finally:
            for session in tuple(self._sessions):
                session.close()
            self._close_listener()

    def identify(self, cluster_id: str) -> None:
        """Name the cluster, at last: connections of another one are closed, the others served."""
        self._identity.cluster_id = cluster_id
        for session in tuple(self._sessions):
            if session.is_closing:
                continue  # another incarnation came after it
            try:
                self._check(session.introduction, session.rights)
            except InvalidArgument as error:
                session.close(error)
            else:
                session.refresh()

    def has_metadata_manager(self, incarnation_ms: int) -> bool:
        """Return whether the metadata manager of that incarnation of the broker is connected."""
        return any(
            each.introduction.role is Role.BROKER
            and each.introduction.part is Plugin.METADATA
            and each.introduction.incarnation_ms == incarnation_ms
            and api.Right.WRITE in each.rights
            for each in self._sessions
        )

    def has_heard_storage_manager(self, incarnation_ms: int) -> bool:
        """Return whether the storage manager of that incarnation of the broker said hello."""
        return self._storage_incarnation_ms == incarnation_ms

    def drain(self) -> None:
        """Take no new connections and no new work; look-ups and what is in flight go on."""
        if self._shared is not None:
            self._shared.draining = True
        if self._accepting is not None:
            self._accepting.cancel()
        self._close_listener()

    async def finish(self, timeout_seconds: float) -> bool:
        """Return whether everything in flight ended in time."""
        if self._shared is None:
            return True
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._shared.idle.wait()
        except TimeoutError:
            return False
        return True

    def stop(self) -> None:
        """Cancel what is in flight, close every connection, let `run` return."""
        self._stop.set()

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()

    # --- accepting

    async def _accept(self, tasks: asyncio.TaskGroup) -> None:
        assert self._listener is not None
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener.socket)
            except OSError as error:  # out of descriptors, or the peer left already
                self._stats.connections_deferred += 1
                _log.warning("server.accept_failed", error=str(error))
                await asyncio.sleep(_ACCEPT_PAUSE_SECONDS)
                continue
            connection.setblocking(False)  # noqa: FBT003 - the socket module's own signature
            if self._stats.connections_now >= self._options.connections_max:
                self._refuse(connection)
                continue
            self._stats.connections += 1
            self._stats.connections_now += 1
            greeting = tasks.create_task(self._greet(connection), name="server.greet")
            greeting.add_done_callback(functools.partial(self._greeted, connection))

    def _refuse(self, connection: socket.socket) -> None:
        self._stats.connections_refused += 1
        error = Overloaded("too many connections", limit=self._options.connections_max)
        with connection, suppress(OSError):
            connection.send(frames.error_frame(frames.CONNECTION_ID, error))

    def _greeted(self, connection: socket.socket, task: asyncio.Task[bool]) -> None:
        """Count a connection out unless a session took it over."""
        taken = not task.cancelled() and task.exception() is None and task.result()
        if not taken:
            connection.close()
            self._stats.connections_now -= 1

    async def _greet(self, connection: socket.socket) -> bool:
        """Serve a connection up to its `hello`, and a bulk one to its end.

        Returns True when a transport owns the connection from now on.
        """
        splitter = frames.Splitter(min(_HELLO_BYTES_MAX, self._options.frame_bytes_max))
        request_id = frames.CONNECTION_ID
        try:
            try:
                async with asyncio.timeout(self._options.hello_seconds):
                    body = await _first_frame(connection, splitter)
            except TimeoutError as error:
                self._stats.hello_timeouts += 1
                raise TimedOut("no hello came") from error
            if body is None:
                return False
            request_id, params = _parse_hello(body)
            introduction, rights = self._admit(connection, params)
        except RlmmError as error:
            self._count_refusal(error)
            return self._send_away(connection, request_id, error)
        except OSError:
            return False
        except Exception as bug:  # noqa: BLE001 - it ends this connection, and nothing else
            return self._send_away(connection, request_id, self._bugs.met(_HELLO, bug))
        welcome = frames.result_frame(request_id, self._welcome(rights))
        rest = splitter.take_rest()
        if introduction.role is Role.BULK:
            return await self._serve_bulk(
                connection, introduction, rights, welcome=welcome, rest=rest
            )
        session = Session(
            self._shared_now(),
            introduction,
            rights,
            welcome=welcome,
            rest=rest,
            opened=self._opened,
            closed=self._lost,
        )
        return await self._take_up(connection, session)

    @staticmethod
    def _send_away(connection: socket.socket, request_id: int, error: RlmmError) -> bool:
        _log.warning("server.hello_refused", error=error.message)
        with suppress(OSError):
            connection.send(frames.error_frame(request_id, error))
        return False

    async def _take_up(self, connection: socket.socket, session: Session) -> bool:
        """Hand a connection to its session; False if that could not be."""
        try:
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(lambda: session, connection)
        except OSError as error:  # out of descriptors, or the peer has left
            self._stats.connections_deferred += 1
            _log.warning("server.accept_failed", error=str(error))
            return False
        return True

    async def _serve_bulk(
        self,
        connection: socket.socket,
        introduction: Introduction,
        rights: frozenset[api.Right],
        *,
        welcome: bytes,
        rest: bytes,
    ) -> bool:
        self._stats.roles[introduction.role.value] += 1
        try:
            with suppress(OSError):
                await asyncio.get_running_loop().sock_sendall(connection, welcome)
                await BulkSession(
                    self._shared_now(), connection, introduction, rights, rest=rest
                ).run()
        finally:
            self._stats.roles[introduction.role.value] -= 1
        return False

    def _shared_now(self) -> Shared:
        assert self._shared is not None, "connections are accepted by run() only"
        return self._shared

    def _opened(self, session: Session) -> None:
        self._sessions.add(session)
        self._stats.roles[session.introduction.role.value] += 1

    def _lost(self, session: Session) -> None:
        self._sessions.discard(session)
        self._stats.roles[session.introduction.role.value] -= 1
        self._stats.connections_now -= 1

    # --- hello

    def _admit(
        self, connection: socket.socket, params: api.HelloParams
    ) -> tuple[Introduction, frozenset[api.Right]]:
        peer = peer_of(connection)
        rights = self._options.rights.rights_of(peer)
        if not rights:
            self._stats.requests_unauthorized += 1
            raise Unauthorized(f"uid {peer.uid} has no right on this socket", uid=peer.uid)
        introduction = replace(introduce(params), uid=peer.uid, pid=peer.pid)
        self._check(introduction, rights)
        if introduction.role is Role.BROKER:
            self._stats.plugins[introduction.part.value] = introduction.client
        _log.info(
            "server.hello", client=introduction.client, role=introduction.role.value,
            part=introduction.part.value, uid=peer.uid, pid=peer.pid,
        )  # fmt: skip
        return introduction, rights

    def _check(self, introduction: Introduction, rights: frozenset[api.Right]) -> None:
        """Verify the ids; once the cluster is known, pass a broker's incarnation on.

        Not that of one who may announce nothing: the gate that it closes would not open again. Nor
        does he say which of the broker's managers are ours, by which stuck copies are ended.
        """
        verify(introduction, self._identity)
        if introduction.role is not Role.BROKER or api.Right.WRITE not in rights:
            return
        if introduction.part is Plugin.STORAGE:
            self._storage_incarnation_ms = introduction.incarnation_ms
        if self._identity.cluster_id is not None and introduction.part is Plugin.METADATA:
            assert introduction.incarnation_ms is not None
            self._services.manager.hello_from_broker(introduction.incarnation_ms)
            self._close_others(introduction.incarnation_ms)

    def _close_others(self, incarnation_ms: int) -> None:
        """Close what other incarnations hold: one that is there all the same announces anew."""
        for session in tuple(self._sessions):
            known = session.introduction
            metadata = known.role is Role.BROKER and known.part is Plugin.METADATA
            if metadata and known.incarnation_ms != incarnation_ms:
                session.close(NotReady("another incarnation of the broker said hello"))

    def _count_refusal(self, error: RlmmError) -> None:
        match error:
            case Malformed(fields={"limit": _}):
                self._stats.frames_too_long += 1
            case Malformed():
                self._stats.frames_malformed += 1
            case _:
                self._stats.hello_refused += 1

    def _welcome(self, rights: frozenset[api.Right]) -> api.HelloResult:
        return api.HelloResult(
            frames.PROTOCOL_VERSION,
            f"rlmm-daemon {self._version}",
            self._identity.cluster_id,
            self._identity.broker_id,
            [right.value for right in api.Right if right in rights],
            self._event_log,
        )


async def _first_frame(connection: socket.socket, splitter: frames.Splitter) -> bytes | None:
    loop = asyncio.get_running_loop()
    while (body := splitter.next()) is None:
        chunk = await loop.sock_recv(connection, _HELLO_BYTES_MAX)
        if not chunk:
            return None
        splitter.feed(chunk)
    return body


def _parse_hello(body: bytes) -> tuple[int, api.HelloParams]:
    request_id, method, raw = frames.decode_request(body)
    if method != _HELLO:
        raise InvalidArgument("the first request of a connection is hello")
    try:
        return request_id, _decode_hello(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"hello: {error}") from error
