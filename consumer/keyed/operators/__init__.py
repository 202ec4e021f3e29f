"""Declared operators over streams: windows, aggregates, top lists, joins."""
