"""The requests under `/_emulator/` with which tests read and steer the emulator.

Owns the shape of what tests see. It must never be reachable by accident from wandb's own paths, and
needs no credentials, since it only listens on loopback in tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from coordinator.emulator import lifecycle
from coordinator.emulator.faults import Change
from coordinator.emulator.server import now

if TYPE_CHECKING:
    from coordinator.emulator.records import Run, Sweep
    from coordinator.emulator.server import Server


def add_routes(app: web.Application, server: Server) -> None:
    """Put the admin requests in front of the catch-all route."""
    admin = _Admin(server)
    app.router.add_get("/_emulator/health", admin.health)
    app.router.add_get("/_emulator/history", admin.history)
    app.router.add_get("/_emulator/state", admin.state)
    app.router.add_post("/_emulator/faults", admin.change_faults)
    app.router.add_post("/_emulator/runs/{run}/stop", admin.stop_run)
    app.router.add_post("/_emulator/runs/{run}/silence", admin.silence_run)


class _Admin:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._backend = server.backend

    async def health(self, _: web.Request) -> web.Response:
        return web.json_response({"ok": True})

    async def history(self, request: web.Request) -> web.Response:
        after = int(request.query.get("after", "-1"))
        return web.json_response(self._backend.history.since(after))

    async def state(self, _: web.Request) -> web.Response:
        await self._server.tick()
        return web.json_response(
            {
                "sweeps": {s.sweep_id: _sweep(s) for s in self._backend.sweeps.values()},
                "runs": {run.run_id: _run(run) for run in self._backend.runs.values()},
                "operations": dict(self._backend.history.operations),
                "clients": {op: sorted(seen) for op, seen in self._backend.history.clients.items()},
                "faults": msgspec.to_builtins(self._server.faults.rules()),
                "behaviour": msgspec.to_builtins(self._backend.behaviour),
            }
        )

    async def change_faults(self, request: web.Request) -> web.Response:
        try:
            change = msgspec.json.decode(await request.read(), type=Change)
        except msgspec.ValidationError as error:
            return web.json_response({"error": str(error)}, status=400)
        self._server.faults.change(change, now())
        self._backend.history.record(now(), "faults_changed", change=msgspec.to_builtins(change))
        return await self.state(request)

    async def stop_run(self, request: web.Request) -> web.Response:
        run = self._find(request)
        if run is None:
            return web.json_response({"error": "no such run"}, status=404)
        self._backend.book.request_stop(run, now())
        return web.json_response(_run(run))

    async def silence_run(self, request: web.Request) -> web.Response:
        run = self._find(request)
        if run is None:
            return web.json_response({"error": "no such run"}, status=404)
        self._backend.book.fall_silent(run, now())
        return web.json_response(_run(run))

    def _find(self, request: web.Request) -> Run | None:
        wanted = request.match_info["run"]
        runs = self._backend.runs.values()
        return next((run for run in runs if run.run_id == wanted), None)


def _sweep(sweep: Sweep) -> dict[str, Any]:
    return {
        "path": sweep.path,
        "state": sweep.state.value,
        "ended_by": sweep.ended_by,
        "method": sweep.search.method,
        "expected": sweep.search.expected,
        "made": sweep.search.made,
        "runs": sweep.run_ids,
        "queue": [
            {"run": entry.run_id, "command": entry.command, "handed_to": sorted(entry.handed_to)}
            for entry in sweep.queue
        ],
        "agents": {
            agent.agent_id: {
                "host": agent.host,
                "claims": agent.claims,
                "holding": sorted(agent.holding),
                "heard": agent.heard.iso,
            }
            for agent in sweep.agents.values()
        },
    }


def _run(run: Run) -> dict[str, Any]:
    return {
        "sweep": run.sweep_id,
        "state": run.state.value,
        "shown_state": run.shown_state,
        "exit_code": run.exit_code,
        "preempting": run.preempting,
        "stop_requested": run.stop_requested,
        "agent": run.agent_id,
        "args": run.args,
        "config": run.config,
        "summary": run.summary,
        "hand_outs": run.hand_outs,
        "duplicates": run.duplicates,
        "inits": run.inits,
        "last_step": lifecycle.last_step(run),
        "rows": len(run.history),
        "rows_received": run.rows_received,
        "history": [msgspec.json.decode(row) for row in run.history],
        "files": {name: len(content) for name, content in run.files.items()},
    }
