"""An experiment: settings, build, compare, and where it is carried out."""

import sys
from types import ModuleType


class _Runs(ModuleType):
    """The room `leanfed.runs`, which as `leanfed.runs(folder)` reads the runs of a folder.

    The name is taken by this package as soon as any of its modules is imported, so the package itself answers.
    """

    def __call__(self, folder: object) -> object:
        from leanfed.runs.read import runs

        return runs(folder)  # type: ignore[arg-type]


sys.modules[__name__].__class__ = _Runs
