"""Valuation of clients: which method finds faulty clients, and at which cost."""
