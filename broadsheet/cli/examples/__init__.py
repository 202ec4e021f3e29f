"""The verbs of `shardctl examples`: a file each."""
