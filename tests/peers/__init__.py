"""Systems of others that ours shares data with: `make peers`."""
