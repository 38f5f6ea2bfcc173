"""Processes of this machine: starting, finding and ending them."""
