"""Mutated bytes for every decoder of bytes that were stored or sent; see docs/fuzzing.md."""
