"""Settings that come with the package, by name."""

from __future__ import annotations

from pathlib import Path

from leanfed.errors import StorageError, nearest

CONFIGS = Path(__file__).resolve().parents[1] / "reproduction" / "configs"


def packaged() -> list[str]:
    """The names of the packaged settings.

    >>> "mnist_alpha01" in packaged()
    True
    """
    return sorted(path.stem for path in CONFIGS.glob("*.toml"))


def settings_file(given: str | Path) -> Path:
    """The file that is named, or the packaged settings of that name where there is no such file."""
    path = Path(given)
    if path.exists() or path.suffix or len(path.parts) != 1:
        return path
    if path.name not in packaged():
        raise StorageError(
            f"{path} is no file, and no packaged settings have that name: {nearest(path.name, packaged())}"
        )
    return CONFIGS / f"{path.name}.toml"
