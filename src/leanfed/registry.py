"""Registries of things chosen by name, such as data sets, models and algorithms.

A package of its own can bring members through entry points: `name = "module:object"` in the group that a registry
names. The object is the member (a class of a method or an aggregation rule), or a function without arguments that
registers it under that name (`leanfed.add_arrays`, `leanfed.add_model`). It is loaded when its name is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from inspect import isfunction
from typing import Generic, TypeVar

from leanfed.errors import SettingsError, nearest

T = TypeVar("T")


class Registry(Generic[T]):
    """Named members of one kind; an unknown name is refused with the nearest known one."""

    def __init__(self, kind: str, *, group: str | None = None) -> None:
        self.kind = kind
        self.group = group  # of entry points; None: members come from this process only
        self._members: dict[str, T] = {}
        self._resolvers: dict[str, Callable[[str], T]] = {}  # by what names begin with

    def add(self, name: str, member: T) -> T:
        """Add a member; a name can be used only once."""
        if not isinstance(name, str) or not name:
            raise SettingsError(f"A {self.kind} cannot be called {name!r}. Give it a name in letters.")
        if name in self._members:
            raise SettingsError(f"The {self.kind} {name!r} is registered already. Choose another name.")
        self._members[name] = member
        return member

    def register(self, name: str) -> Callable[[T], T]:
        """Decorate a class or function to add it."""
        return lambda member: self.add(name, member)

    def resolve(self, prefix: str, make: Callable[[str], T]) -> None:
        """Let names that begin with `prefix` be members: `make(name)` makes one when it is first asked for."""
        self._resolvers[prefix] = make

    def __getitem__(self, name: str) -> T:
        if name not in self._members and (make := self._resolver(name)):
            self.add(name, make(name))
        if name not in self._members and (brought := self._brought().get(name)):
            self._load(brought)
        if name not in self._members:
            raise SettingsError(f"Unknown {self.kind} {name!r}: {nearest(name, list(self))}")
        return self._members[name]

    def __contains__(self, name: object) -> bool:
        return name in self._members or name in self._brought() or self._resolver(str(name)) is not None

    def _resolver(self, name: str) -> Callable[[str], T] | None:
        return next((make for prefix, make in self._resolvers.items() if name.startswith(prefix)), None)

    def __iter__(self) -> Iterator[str]:
        return iter([*self._members, *(name for name in self._brought() if name not in self._members)])

    def _brought(self) -> dict[str, EntryPoint]:
        """What installed packages bring, by name."""
        return {} if self.group is None else {entry.name: entry for entry in entry_points(group=self.group)}

    def _load(self, entry: EntryPoint) -> None:
        """Register what a package brings; a fault of the package is said to be its own."""
        package = f"the package {entry.dist.name!r}" if entry.dist else "a package"
        try:
            brought = entry.load()
            if not isfunction(brought):
                self.add(entry.name, brought)
                return
            brought()
        except Exception as error:
            raise SettingsError(
                f"The {self.kind} {entry.name!r} of {package} cannot be loaded ({type(error).__name__}: {error}). "
                "Repair or remove that package."
            ) from error
        if entry.name not in self._members:
            raise SettingsError(
                f"{entry.value} of {package} was called to register the {self.kind} {entry.name!r}, and did not. "
                "Let it call leanfed.add_... with that name."
            )

    def remove(self, name: str) -> None:
        """Remove a member."""
        del self._members[name]
