"""Connection of the blocking client's calls, one after the other."""

from typing import Any, Self

from rlmm_daemon.client import _common as common
from rlmm_daemon.client._sync.connection import Connection
from rlmm_daemon.codec import api
from rlmm_daemon.domain.errors import ProtocolViolation, RlmmError


class Exchange:
    """A request and its answer at a time; lost after any error but the daemon's own answer."""

    def __init__(self, connection: Connection) -> None:
        self.welcome = connection.welcome
        self.lost = False
        self.connection = connection

    @classmethod
    def over(cls, connection: Connection) -> Self:
        """Return the exchange over a connection that has said hello."""
        return cls(connection)

    def call(self, row: api.Method, params: Any, deadline: float) -> Any:
        """Return a method's result, for streams all pages.

        Raises:
            NotSent: the daemon was gone before.
            OSError: the connection is lost, or TimeoutError.
            RlmmError: what the daemon answered.
        """
        connection = self.connection
        try:
            request_id = connection.send(row.name, params, deadline)
            result = common.result_of(connection.receive(deadline), request_id, row.result)
            if row.shape is not api.Shape.STREAM:
                return result
            pages = [result]
            while pages[-1].more:
                body = connection.receive(deadline)
                pages.append(common.result_of(body, request_id, row.result))
        except BaseException as error:
            if not isinstance(error, RlmmError) or isinstance(error, ProtocolViolation):
                self.close()  # an answer that still comes would be taken for the next call's
            raise
        return pages

    def close(self) -> None:
        """Close."""
        self.lost = True
        self.connection.close()
