"""Conformance suites: the contract of a store as tests for any store; see docs/stores.md."""
