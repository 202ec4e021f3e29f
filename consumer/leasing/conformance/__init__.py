"""The promises of a record store and of a lease manager over it, as tests that any backend can be put to."""
