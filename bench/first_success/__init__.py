"""What a user waits for and pays before the first success: the size of the installation, and the time of imports."""
