"""What it costs: fleet, channel, payload, rate, latency and energy (NumPy only)."""
