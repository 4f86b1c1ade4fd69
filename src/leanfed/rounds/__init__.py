"""What a round is, on any engine: who takes part, what is asked, aggregated, charged and recorded."""

from leanfed.rounds import aggregation  # rules of aggregation register themselves when they are imported here

__all__ = ["aggregation"]
