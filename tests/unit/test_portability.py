"""Every module can be imported where there is no POSIX: Linux, macOS and Windows share one package."""

from __future__ import annotations

import subprocess
import sys

IMPORT_ALL = """
import importlib, mmap, os, pkgutil, signal, socket, sys
import leanfed

names = [found.name for found in pkgutil.walk_packages(leanfed.__path__, "leanfed.")]
names = [name for name in names if not name.endswith("__main__")]
for name in names:  # once as we are, so that other packages and the standard library are in memory
    importlib.import_module(name)
for name in [name for name in sys.modules if name.partition(".")[0] == "leanfed"]:
    del sys.modules[name]

for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None  # as if it were not there
missing = {
    mmap: [name for name in dir(mmap) if name.startswith("MADV_")],
    os: "fork forkpty getuid geteuid getgid killpg getpgid setsid pipe2 pwrite pidfd_open posix_fallocate uname"
    " sched_getaffinity WNOHANG O_NONBLOCK O_CLOEXEC".split(),
    signal: "SIGKILL SIGCHLD SIGHUP SIGUSR1 SIGUSR2 SIGPIPE SIGALRM setitimer pidfd_send_signal".split(),
    socket: "AF_UNIX SO_PEERCRED send_fds recv_fds".split(),
}
for module, attributes in missing.items():
    for attribute in attributes:
        if hasattr(module, attribute):
            delattr(module, attribute)
for name in names:
    importlib.import_module(name)
print(len(names))
"""


def test_every_module_is_imported_without_posix() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 150
