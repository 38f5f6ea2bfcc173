"""The pool: slots, agents, claims and trainings of one node."""
