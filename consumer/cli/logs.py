"""Logs on standard error: lines for people on a terminal, JSON for machines."""

from __future__ import annotations

import logging
import sys

import structlog

LOG_LEVELS = ("debug", "info", "warning", "error")


def log_to_stderr(level: str) -> None:
    """Send every event of `level` and above to standard error.

    Args:
        level: One of `LOG_LEVELS`.
    """
    on_terminal = sys.stderr.isatty()
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if on_terminal else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
