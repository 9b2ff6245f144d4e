"""Connections of the two kinds of clients. aio.py uses AsyncTransport, and the blocking client, which setup.py derives
from aio.py, uses Transport."""

from __future__ import annotations

import asyncio
import threading

import grpc

from fsdpd.connection import Connection
from fsdpd.errors import Error
from fsdpd.places import Places


class Transport(Places[grpc.Channel]):
    """Blocking connections. Thread-safe."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.addresses, connection.channel)
        self._closing = threading.Event()
        self.diagnosed = connection.diagnosed

    def close(self) -> None:
        self.closed = True
        self._closing.set()
        for channel in self.channels():
            channel.close()

    def pause(self, seconds: float) -> bool:
        """Returns whether the client was closed in the meantime."""
        return self._closing.wait(seconds)


class AsyncTransport(Places[grpc.aio.Channel]):
    """Connections of asyncio."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.addresses, connection.async_channel)
        self._diagnosed = connection.diagnosed

    async def diagnosed(self, error: Error, address: str) -> Error:
        return await asyncio.to_thread(self._diagnosed, error, address)

    async def close(self) -> None:
        self.closed = True
        for channel in self.channels():
            await channel.close()

    async def pause(self, seconds: float) -> bool:
        await asyncio.sleep(seconds)
        return False  # The next call raises that the client is closed.
