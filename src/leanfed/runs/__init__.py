"""An experiment: its settings, how it is carried out, and runs side by side."""
