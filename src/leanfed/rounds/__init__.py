"""The parts of a round, whatever engine computes it: participants, plan, aggregation, costs and records."""
