"""The waits of operators: upgrades, backups, restores."""
