"""What the allocator decides, how fast, and how far that is from what can be proven."""
