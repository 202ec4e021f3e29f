"""The cost of a user's first success: the size of the installation, and the time of imports."""
