"""A throttling proxy on loopback: one device's link, with a rate and a delay each way."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

CHUNK = 4096


@dataclass
class Wire:
    """One direction of a link, shared by all of its connections."""

    bit_per_s: float
    delay_s: float
    free_at: float = 0.0
    carried: int = 0  # bytes

    def arrival(self, size: int) -> tuple[float, float]:
        """(when the wire is free again, when the last bit arrives) if so many bytes are put on it now."""
        self.free_at = max(time.monotonic(), self.free_at) + 8.0 * size / self.bit_per_s
        self.carried += size
        return self.free_at, self.free_at + self.delay_s


@dataclass
class Throttle:
    """Carries connections to `target` (a port of 127.0.0.1) over two wires."""

    target: int
    bit_per_s: float
    rtt_s: float
    port: int = 0
    _ready: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.up, self.down = (Wire(self.bit_per_s, self.rtt_s / 2) for _ in range(2))

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        try:
            # Cancelled at the end: asyncio's streams of Python 3.11 would print it as a fault.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(_carry(reader, far_writer, self.up), _carry(far_reader, writer, self.down))
        finally:
            far_writer.close()
            writer.close()

    async def serve(self, stop: asyncio.Event) -> None:
        """Listen on a free port until told to stop."""
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await stop.wait()
        server.close()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wire: Wire) -> None:
    """Bytes in their order, each chunk when the wire has carried it; the end of the stream travels as well."""
    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(64)

    async def deliver() -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                at, data = await queue.get()
                await asyncio.sleep(max(0.0, at - time.monotonic()))
                if not data:
                    break
                writer.write(data)
                await writer.drain()
        writer.close()

    sending = asyncio.ensure_future(deliver())
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(CHUNK):
            free, arrives = wire.arrival(len(data))
            await queue.put((arrives, data))
            await asyncio.sleep(max(0.0, free - time.monotonic()))
    await queue.put((time.monotonic() + wire.delay_s, b""))
    await sending


@contextlib.contextmanager
def throttled(target: int, links: list[tuple[float, float]]) -> Iterator[list[Throttle]]:
    """A proxy for each (bit/s, round-trip seconds), in a thread of its own."""
    proxies = [Throttle(target, rate, rtt) for rate, rtt in links]
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        await asyncio.gather(*(proxy.serve(stop) for proxy in proxies))
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.sleep(0.05)  # transports close in the next turn

    def run() -> None:
        loop.run_until_complete(serve())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        for proxy in proxies:
            if not proxy._ready.wait(10):
                raise RuntimeError("the proxy does not listen")
        yield proxies
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
