"""The planner page: sliders in, a planned round out."""
