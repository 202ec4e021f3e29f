"""Conformance tests of record stores, and of the lease manager on top of them."""
