"""Reports of tests as they can be sent from one process of a run to another: text that UTF-8 can hold.

A test that fails on text with a lone surrogate (of undecodable bytes, say) has it in its report. The channel between
the processes cannot carry that: the whole run would end there, without a word of what failed.
"""

from __future__ import annotations


def sendable(data: object) -> object:
    """Return a copy of a serialised report in which whatever UTF-8 cannot hold is written as an escape."""
    if isinstance(data, str):
        return data.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(data, dict):
        return {sendable(key): sendable(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return type(data)(sendable(value) for value in data)
    return data
