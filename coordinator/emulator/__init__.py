"""A stand-in W&B backend for tests and demonstrations: sweeps, agents, runs and faults on demand.

The package owns everything that the real `wandb` command line and SDK need from a server in order
to create a sweep, run agents and report runs, all in memory. It must never import another part of
`coordinator`, nor wandb: what it knows of the wire it knows by itself, so that a mistake in our
client code cannot hide behind the same mistake here.

Layers, lower ones first: `records`, `search`, `document`, `selection` (values only), `state` and
`lifecycle` (the backend, the present time is passed in), `schema` and `graphql` (the documents),
`faults` and `history`, then `server`, `admin` and `__main__` (HTTP and the command line).
"""
