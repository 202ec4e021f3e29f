"""A cluster of one's own application for its tests. `broadsheet.testing` is the door to it."""
