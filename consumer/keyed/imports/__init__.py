"""State that another system kept: the files of an import, and how a shard begins with its part of them."""
