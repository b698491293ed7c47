"""Limits of the number of connections, and of the time for a request's head."""

import asyncio
from contextlib import suppress

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from tools.serving.errors import ApiError

IDLE = 75  # seconds for the head of the next request: clients close idle connections earlier
MOST = 1000  # connections
SPARE = 100  # files for other things
REFUSED = 20  # connections above the most that get an answer; others are closed

with suppress(ImportError):  # Windows has no such limit
    import resource

    FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    MOST = MOST if FILES < 0 else max(1, min(MOST, FILES - SPARE))


class Connection(H11Protocol):
    clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        if len(self.connections) > MOST:
            message = "the server has too many connections: try again later"
            self.app = ApiError(message, status=503, headers={"Connection": "close"}).response()
        if len(self.connections) > MOST + REFUSED:
            transport.abort()
        self.limit_head()

    def handle_events(self) -> None:
        super().handle_events()
        self.limit_head()

    def limit_head(self) -> None:
        """Close the connection if IDLE seconds after the last response no request has begun."""
        if self.conn.their_state is h11.IDLE:
            self.clock = self.clock or self.loop.call_later(IDLE, self.transport.close)
        else:
            self.stop_clock()

    def stop_clock(self) -> None:
        if self.clock:
            self.clock.cancel()
            self.clock = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_clock()
        super().connection_lost(exc)
