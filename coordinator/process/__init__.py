"""Processes of this machine: how they are started, found and ended."""
