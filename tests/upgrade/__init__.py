"""A cluster that is rolled from the previous release to this one, and back."""
