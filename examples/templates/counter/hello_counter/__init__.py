"""Counts messages by their key, exactly once."""
