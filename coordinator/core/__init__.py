"""Decisions as pure functions and tables: no IO, no clock, no random numbers."""
