"""Bids of an online auction by bidder and session, which can be looked at while they are open."""
