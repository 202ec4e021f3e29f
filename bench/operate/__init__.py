"""What operators wait for: upgrades, backups, restores."""
