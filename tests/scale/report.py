"""The table of a play.

Owns the words for people; the exit code is the interface.
"""

from tests.nemesis.report import table
from tests.scale.judge import share
from tests.scale.play import Phase, Plan, Result

HEAD = ("phase", "seconds", "calls/s", "Redis CPU", "us/call", "acquires", "p50", "p99",
        "duplicates", "lost", "connections", "client CPU", "loop lag p99, most")  # fmt: skip
STARVED_SECONDS = 0.1
RENEWAL_SHARE = 0.05
ACQUIRE_SECONDS = 0.5
WAITS = frozenset({"preempt", "restart", "wipe"})
"""Phases whose acquires wait for holders: their time says nothing about Redis."""


def cells(phase: Phase) -> tuple[str, ...]:
    """One row."""
    work, clients = phase.work, phase.clients
    calls = sum(work.calls.values())
    timed = [] if phase.name in WAITS else clients.acquires
    return (
        phase.name,
        f"{work.seconds:.0f}",
        f"{work.calls_per_second:.0f}",
        f"{100 * work.share:.1f} %",
        f"{sum(work.microseconds.values()) / calls:.0f}" if calls else "-",
        str(len(clients.acquires)) if clients.acquires else "-",
        f"{1000 * share(timed, 0.5):.0f} ms" if timed else "-",
        f"{1000 * share(timed, 0.99):.0f} ms" if timed else "-",
        str(phase.duplicates),
        str(phase.lost),
        str(work.connections),
        f"{100 * clients.cpu_seconds / work.seconds:.0f} %",
        f"{1000 * share(clients.lags, 0.99):.0f}, {1000 * max(clients.lags, default=0):.0f} ms",
    )


def details(phase: Phase) -> list[str]:
    """What does not fit into a row."""
    work, clients = phase.work, phase.clients
    calls = ", ".join(
        f"{name} {count} ({work.microseconds[name] / max(count, 1):.0f} us)"
        for name, count in sorted(work.calls.items()) if count
    )  # fmt: skip
    lines = [f"calls: {calls}"]
    if work.percentiles:
        lines.append(f"one script call inside Redis, us: {work.percentiles}")
    if work.slow:
        worst = ", ".join(f"{us / 1000:.1f} ms {what}" for us, what in work.slow[:2])
        lines.append(f"calls over 2 ms: {len(work.slow)} (at most 128 kept), the longest: {worst}")
    lines.append(f"memory: {work.memory / 1e6:.1f} MB, of it data {work.dataset / 1e6:.1f} MB")
    for name, counts in (("drops", clients.drops), ("events", clients.events)):
        if counts:
            lines.append(f"{name}: {', '.join(f'{k} {v}' for k, v in sorted(counts.items()))}")
    if clients.rescued:
        lines.append(f"taken from the rescue queue: {clients.rescued}")
    if clients.questions:
        shown = ", ".join(f"{1000 * seconds:.0f} ms" for seconds in clients.questions)
        lines.append(f"an operator's `nodes` and `leases ls`: {shown}")
    lines += [f"{name}: {value}" for name, value in phase.facts.items()]
    if (lag := share(clients.lags, 0.99)) > STARVED_SECONDS:
        words = f"the clients were starved: their loops ran {1000 * lag:.0f} ms late (p99), which"
        lines.append(f"{words} is part of every latency above that a client measured")
    return [f"    {line}" for line in lines]


def limits(result: Result) -> list[str]:
    """What a site may count on, in words; a busy machine may miss a time for its own reasons."""
    words = []
    if (steady := result.phase("steady")) is not None:
        kept = "kept" if steady.work.share < RENEWAL_SHARE else "MISSED"
        words.append(f"renewals take Redis {100 * steady.work.share:.1f} % of a core, "
                     f"at most {100 * RENEWAL_SHARE:.0f} %: {kept}")  # fmt: skip
    if (single := result.phase("single")) is not None:
        seconds = share(single.clients.acquires, 0.99)
        kept = "kept" if seconds <= ACQUIRE_SECONDS else "MISSED"
        words.append(f"an acquire outside the herd takes {seconds:.3f} s (p99), "
                     f"at most {ACQUIRE_SECONDS:g} s: {kept}")  # fmt: skip
    return words


def report(plan: Plan, result: Result) -> str:
    """Everything that there is to say."""
    times = f"TTL {plan.times.ttl_seconds:g} s, renewal {plan.times.renew_seconds:g} s"
    parts = [f"{plan.nodes} nodes with {plan.slots} slots, {result.server}, {times}"]
    parts.append(table([HEAD, *map(cells, result.phases)]))
    parts += limits(result)
    parts += [f"BROKEN: {words}" for words in result.broken]
    parts.append("broken" if result.broken else "0 duplicates, 0 lost runs")
    return "\n".join(parts)
