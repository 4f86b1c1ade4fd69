"""What a round is, on any engine: who takes part, what is asked, aggregated, charged and recorded."""
