"""Registries of things chosen by name, such as data sets, models and algorithms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from leanfed.errors import SettingsError, nearest

T = TypeVar("T")


class Registry(Generic[T]):
    """Named members of one kind; an unknown name is refused with the nearest known one."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._members: dict[str, T] = {}

    def add(self, name: str, member: T) -> T:
        """Add a member; a name can be used only once."""
        if name in self._members:
            raise ValueError(f"The {self.kind} {name!r} is registered already. Choose another name.")
        self._members[name] = member
        return member

    def register(self, name: str) -> Callable[[T], T]:
        """Decorate a class or function to add it."""
        return lambda member: self.add(name, member)

    def __getitem__(self, name: str) -> T:
        if name not in self._members:
            raise SettingsError(f"Unknown {self.kind} {name!r}: {nearest(name, self._members)}")
        return self._members[name]

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def remove(self, name: str) -> None:
        """Remove a member."""
        del self._members[name]
