"""A deterministic simulator of whole clusters: one seed, one course of events."""
