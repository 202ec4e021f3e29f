"""The allocator's decisions: their time, and their distance from what can be proven."""
