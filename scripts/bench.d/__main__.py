"""scripts/bench: ratios, never a bare time, since times say more of the machine than of us.

Owns the options. Each benchmark is a module of its own beside this one.
"""

import argparse
import sys

import anyio
from leases import bench_leases

EXAMPLES = """\
examples:
  scripts/bench leases               8, 100 and 1,000 leases renewed, compared with other ways
  scripts/bench leases --rounds 200  steadier numbers

It needs redis-server (or what the daemon would take); nothing else on the machine is touched.
"""


def main() -> int:
    """Run the benchmark that is named."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description=__doc__.splitlines()[0] if __doc__ else "",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=["leases"])
    parser.add_argument("--rounds", type=int, default=30, help="of each way (default: 30)")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    anyio.run(bench_leases, options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
