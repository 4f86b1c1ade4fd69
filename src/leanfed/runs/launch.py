"""Several ranks on this machine: started, watched, and started anew when one of them dies.

torchrun does the same, but starts a run anew that was refused.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from leanfed.interpreter import command, environment

TIED: Final = "LEANFED_TIED"  # set for ranks whose standard input ends with the process that started them
GRACE_S: Final = 30.0  # for ranks that are told to end
LOOK_S: Final = 0.1
ENDED: Final = (0, 2, 3, 130, 143)  # exit codes that starting anew would not change: done, refused, stopped


def launch(ranks: int, words: Sequence[str], restarts: int = 3) -> int:
    """Run `leanfed WORDS` as so many ranks; the exit code of the run.

    Where a rank dies, the others are ended and all are started anew, at most `restarts` times; they go on from the last
    checkpoint. A refusal is not repeated.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    # As torchrun does, this process keeps the store at which the ranks meet, so that it outlives them.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    with _passed_on() as processes:
        for attempt in range(restarts + 1):
            processes[:] = [_start(rank, ranks, store.port, attempt, words) for rank in range(ranks)]
            try:
                code = _watch(processes)
            finally:
                _let_go(processes)
            if code in ENDED or attempt == restarts:
                return code
            print(f"a rank ended with exit code {code}: all are started anew", file=sys.stderr)
    return code


def _start(rank: int, ranks: int, port: int, attempt: int, words: Sequence[str]) -> subprocess.Popen[bytes]:
    told = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": True,
        "TORCHELASTIC_RESTART_COUNT": attempt,
        TIED: 1,
    }
    known = environment() | {name: str(value) for name, value in told.items()}
    return subprocess.Popen(command("leanfed", *words), env=known, stdin=subprocess.PIPE)


def _watch(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait until all ranks have ended, or one has failed; then the others are ended too."""
    while True:
        codes = [process.poll() for process in processes]
        failed = [code for code in codes if code]
        if failed:
            _end(processes)
            codes = [process.returncode for process in processes]
            # Who refuses says why; the others only lose a peer.
            return next((code for code in codes if code in ENDED[1:]), _positive(failed[0]))
        if None not in codes:
            return 0
        time.sleep(LOOK_S)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End ranks: those that fail in the next seconds by themselves, the others by a signal."""
    limit = time.monotonic() + GRACE_S
    own_way = time.monotonic() + 2.0  # a refusal reaches all ranks within moments
    while any(process.poll() is None for process in processes) and time.monotonic() < own_way:
        time.sleep(LOOK_S)
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(max(0.0, limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _positive(code: int) -> int:
    """As a shell has it: 128 + the signal that ended a process."""
    return code if code > 0 else 128 - code


@contextmanager
def _passed_on() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Pass signals on to the ranks, which end by them with a word and a whole checkpoint."""
    processes: list[subprocess.Popen[bytes]] = []

    def stop(number: int, frame: object) -> None:
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield processes
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _let_go(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End what has not ended, and close what ranks are tied by."""
    for process in processes:
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def end_with_launcher() -> None:
    """Let this rank end with the process that launched it; its run's checkpoint is on disk."""
    if os.environ.pop(TIED, None):
        threading.Thread(target=_end_at_end_of_input, daemon=True).start()


def _end_at_end_of_input() -> None:
    while os.read(0, 1024):
        pass
    os._exit(1)
