"""The throttling proxy that fleets are measured behind: its rate and its delay are what it was asked for."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from benchmarks.throttle import throttled


def test_a_proxy_carries_bytes_at_its_rate_and_after_its_delay() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def echo() -> None:
        near, _ = listener.accept()
        with near:
            got = b""
            while len(got) < 20_000:
                got += near.recv(65536)
            near.sendall(got[:1000])

    thread = threading.Thread(target=echo, daemon=True)
    thread.start()
    with throttled(listener.getsockname()[1], [(1e6, 0.1)]) as (proxy,):
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", proxy.port), 5) as mine:
            mine.sendall(b"x" * 20_000)
            back = b""
            while len(back) < 1000:
                back += mine.recv(65536)
        seconds = time.monotonic() - began
        assert proxy.up.carried == 20_000
    thread.join(5)
    listener.close()
    least = 8 * 21_000 / 1e6 + 0.1  # up, down, and the delay there and back
    assert least <= seconds
    assert seconds < least + 2.0  # a busy machine is late, not early
    assert back == b"x" * 1000
    with pytest.raises(OSError, match=r"refused|reset"):
        socket.create_connection(("127.0.0.1", proxy.port), 1).close()
