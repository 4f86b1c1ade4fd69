"""One palette for the house: a colour means a method, in every figure, report and page.

The first eight are Okabe and Ito's, which colour-blind readers can distinguish; the others are of Tol's muted scheme.
What is no method (a way of counting, a stage, a seed) is drawn in the neutral colours, which no method has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
NEUTRAL: Final = ("#4C5A67", "#93A1AD", "#C3CCD4", "#6F5E8C", "#A898C0")
OUR_DASH, THEIR_DASH = "-", "--"
# Those too dark for a dark page, lightened.
ON_DARK: Final = {
    "#000000": "#E6E9ED",
    "#332288": "#9A8CF0",
    "#882255": "#E06A9B",
    "#117733": "#5FBF7F",
    "#0072B2": "#3FA0DC",
}


@dataclass(frozen=True)
class Look:
    """How a method is drawn: its colour, and solid where it is one of ours."""

    colour: str
    dash: str = THEIR_DASH


METHODS: Final = {  # the longest name that a label holds decides
    "flpdsp-opt": Look("#0072B2", OUR_DASH),
    "flpdsp-opt fast": Look("#0072B2", OUR_DASH),
    "flpdsp-opt safe": Look("#009E73", OUR_DASH),
    "flpdsp-opt plain": Look("#CC79A7", OUR_DASH),
    "flpdsp-opt tuned": Look("#B2182B", OUR_DASH),
    "flpdsp": Look("#E69F00", OUR_DASH),
    "fedper": Look("#D55E00"),
    "lg-fedavg": Look("#882255"),
    "fedavg": Look("#000000"),
    "fedavg-s": Look("#777777"),
    "fedavg-p": Look("#56B4E9"),
    "fedmask": Look("#332288"),
    "fedrep": Look("#999933"),
    "fedprox": Look("#117733"),
    "local": Look("#44AA99"),
    "head-only": Look("#AA4499"),
}


def method_look(label: str, *, method: str = "") -> Look | None:
    """The look of the method that a label names, else of the method by its registered name; None for anything else.

    >>> method_look("FLPDSP-OPT fast, seed 1").colour
    '#0072B2'
    >>> method_look("Class-2") is None
    True
    """
    for text in (label, method):
        plain = re.sub(r"[\s_]+", " ", text.lower())
        named = [name for name in METHODS if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", plain)]
        if named:
            return METHODS[max(named, key=len)]
    return None


def shade(colour: str, number: int, count: int) -> str:
    """One of `count` shades of a colour for several curves of one method: its own first, then darker ones.

    >>> shade("#E69F00", 0, 3), shade("#E69F00", 2, 3)
    ('#E69F00', '#5C3F00')
    """
    if count < 2:
        return colour
    kept = 1 - 0.6 * number / (count - 1)
    return "#" + "".join(f"{int(int(colour[place : place + 2], 16) * kept):02X}" for place in (1, 3, 5))
