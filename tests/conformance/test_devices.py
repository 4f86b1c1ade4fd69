"""The battery of another device, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BATTERY = Path(__file__).with_name("device_battery.py")


@pytest.mark.parametrize("marked", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_the_battery_of_devices_passes(marked: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", f"{marked} and not gpu", str(BATTERY)]
    ended = subprocess.run(command, cwd=BATTERY.parents[2], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
    assert " passed" in ended.stdout
