"""Runbooks of docs/deploy/disaster.md, on clusters that lose what the page says."""
