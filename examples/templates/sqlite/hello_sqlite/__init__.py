"""Keeps visits of pages in SQLite, and answers queries for them."""
