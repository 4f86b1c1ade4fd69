"""Registration of a user's own method."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import create_model

from leanfed.algorithms.base import ALGORITHMS, Algorithm
from leanfed.errors import InputError


def add_method(name: str, method: type[Algorithm]) -> type[Algorithm]:
    """Register a method, a subclass of `leanfed.algorithms.base.Algorithm`; `algorithm.name` then chooses it.

    Its fields are its settings. Any engine and a fleet can run it.

    >>> from leanfed.algorithms.fedper import FedPer
    >>> class Mine(Algorithm):
    ...     pull: float = 0.1
    ...     def client_update(self, shared, cohort, learner):
    ...         return FedPer().client_update(shared, cohort, learner)
    >>> add_method("mine", Mine)(pull=0.5).model_dump()
    {'pull': 0.5, 'name': 'mine'}
    >>> ALGORITHMS.remove("mine")
    """
    if not (isinstance(method, type) and issubclass(method, Algorithm)):
        raise InputError(
            f"The method {name!r} must be a subclass of leanfed.algorithms.base.Algorithm, not {method!r}."
        )
    if "name" not in method.model_fields:
        named: Any = (Literal[name], name)
        method = create_model(
            method.__name__, __base__=method, __module__=method.__module__, __doc__=method.__doc__, name=named
        )
    return ALGORITHMS.add(name, method)
