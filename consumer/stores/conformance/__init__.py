"""The promises of a store, as tests that any store can be put to; see docs/stores.md."""
