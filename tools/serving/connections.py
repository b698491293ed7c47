"""Connections with limits of their number, and of the time in which a client sends a request."""

import asyncio
import resource
from http import HTTPStatus

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from tools.serving.errors import ApiError

# Seconds for the head of a request, and for its body, however it comes. Between two requests uvicorn's
# timeout_keep_alive holds.
SECONDS = {h11.IDLE: 20.0, h11.SEND_BODY: 60.0}
MOST = 1000  # connections
SPARE = 100  # files that are kept for other than connections
REFUSED = 20  # connections above the most that are refused in words; others are closed
LINGER = 1.0  # seconds in which a refused client can read the answer


class Connection(H11Protocol):
    """A connection of uvicorn's, within limits."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.expected = h11.IDLE
        above = len(self.connections) - most_connections()
        self.refused = above > 0
        if not self.refused:
            self.clock = self.loop.call_later(SECONDS[h11.IDLE], self.give_up)
            return
        self.clock = self.loop.call_later(LINGER if above <= REFUSED else 0, transport.abort)
        transport.write(answer(503, "the server has too many connections: try again later"))
        transport.write_eof()  # to close before the request is read would take the answer back

    def connection_lost(self, exc: Exception | None) -> None:
        self.clock.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self.refused:
            super().data_received(data)

    def handle_events(self) -> None:
        """Limit the time for what the client has to send next; what comes of it does not prolong that."""
        super().handle_events()
        expected = self.conn.their_state if self.begun else None
        if expected is not self.expected:
            self.expected = expected
            self.clock.cancel()
            if expected in SECONDS:
                self.clock = self.loop.call_later(SECONDS[expected], self.give_up)

    @property
    def begun(self) -> bool:
        """Whether a part of a request has come, or all of it."""
        return self.conn.their_state is not h11.IDLE or bool(self.conn.trailing_data[0])

    def give_up(self) -> None:
        if self.begun and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(answer(408, "the request takes too long to come"))
        self.transport.close()


def most_connections() -> int:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] % 2**63  # -1 means no limit
    return max(1, min(MOST, files - SPARE))


def answer(status: int, message: str) -> bytes:
    """Return an error as it is sent before, or in place of, what the application answers."""
    response = ApiError(message, status=status, headers={"Connection": "close"}).response()
    head = b"".join(b"%s: %s\r\n" % header for header in response.raw_headers)
    return (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode() + head + b"\r\n" + bytes(response.body)
    )
