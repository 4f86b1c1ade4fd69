"""Small messages that measure a link: of a chosen size each way, to devices that no order measures."""

from __future__ import annotations

import os
import time

from leanfed.deployment.learning.members import Member
from leanfed.deployment.learning.messages import Echo, MessageError, Probe

UNSURE = 0.25  # a link whose seconds are less sure than this, relative to themselves, is probed before the first round


def new_probe(run: str, size: int) -> Probe:
    """A probe of `size` bytes each way, which no compression shortens."""
    return Probe(run=run, token=os.urandom(16).hex(), pad=os.urandom(size), reply_bytes=size)


def echo(probe: Probe, began: float) -> Echo:
    """A node's reply; `began` is when the message was taken up, by `time.perf_counter`."""
    pad = os.urandom(probe.reply_bytes)
    return Echo(token=probe.token, pad=pad, work_s=time.perf_counter() - began, sent_at=time.time())


def check_echo(reply: Echo, probe: Probe) -> None:
    """Refuse a reply that is not that of the probe."""
    if reply.token != probe.token or len(reply.pad) != probe.reply_bytes:
        raise MessageError(
            "malformed", f"a probe's reply with {len(reply.pad)} bytes, not the {probe.reply_bytes} asked for"
        )


def is_due(member: Member, number: int, every: int) -> bool:
    """Whether a device was not heard of for so many rounds, and can be probed."""
    return member.speaks >= 2 and bool(every) and number - member.measured.heard > every


def is_unsure(member: Member, size: int) -> bool:
    """Whether what is known of a device's link does not tell how long `size` bytes each way take."""
    measured = member.measured
    expected = measured.down.line.seconds(size) + measured.up.line.seconds(size)  # clocks cancel
    return member.speaks >= 2 and measured.deviation_s(size, size) > UNSURE * max(expected, 0.0)
