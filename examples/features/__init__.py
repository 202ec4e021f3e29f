"""Features of users, looked up while they are computed, and read as a table to train on."""
