"""Keyed state: rows, latency, ten million keys, a storm of timers, the recovery log, and fail-over."""
