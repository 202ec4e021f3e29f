"""Totals of customers, from a topic into a topic: no journal, and so no broker of journals."""
