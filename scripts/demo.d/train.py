"""The training of the demo: fits a line by gradient descent, with real wandb.

All that a preemptible training needs is here: it saves its step and weights after every step, goes
on from what it finds, and on SIGTERM marks itself as preempting, saves and exits with 143. It knows
nothing of wandb-coordinator. The lines that it appends to DEMO_RECORDS are for the judge of the
demo alone: what a training process itself says it did, and when.
"""

import argparse
import json
import os
import random
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

RUN = os.environ["WANDB_RUN_ID"]
CHECKPOINT = Path(os.environ["DEMO_CHECKPOINTS"]) / f"{RUN}.json"
PREEMPTED_EXIT_CODE = 143
"""128 + SIGTERM. Any code but 0 would do: W&B never queues a run again that exits with 0."""


@dataclass
class Model:
    """Everything that a checkpoint holds."""

    step: int = 0
    slope: float = 0.0
    offset: float = 0.0


def record(what: str, step: int, **more: object) -> None:
    """One line in one write, so that the lines of several processes do not mix."""
    line = {"what": what, "at": time.monotonic(), "run": RUN, "pid": os.getpid(),
            "node": os.environ["DEMO_NODE"], "step": step, **more}  # fmt: skip
    with Path(os.environ["DEMO_RECORDS"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def load() -> Model:
    """The checkpoint, or a fresh model."""
    if CHECKPOINT.exists():
        return Model(**json.loads(CHECKPOINT.read_text(encoding="utf-8")))
    return Model()


def save(model: Model) -> None:
    """Write the checkpoint whole or not at all."""
    partial = CHECKPOINT.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(asdict(model)), encoding="utf-8")
    partial.replace(CHECKPOINT)


def improve(model: Model, rate: float) -> float:
    """One step of gradient descent on 64 noisy points of y = 3x + 2; the loss before it."""
    chance = random.Random(model.step)
    points = [chance.uniform(-1, 1) for _ in range(64)]
    errors = [model.slope * x + model.offset - (3 * x + 2 + chance.gauss(0, 0.1)) for x in points]
    model.slope -= rate * 2 * sum(e * x for e, x in zip(errors, points, strict=True)) / len(points)
    model.offset -= rate * 2 * sum(errors) / len(points)
    model.step += 1
    return sum(e * e for e in errors) / len(errors)


def main() -> int:
    """Train to the last step, or until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--learning_rate", type=float, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step_seconds", type=float, required=True)
    options = parser.parse_args()
    asked_to_end: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: asked_to_end.append(number))
    model = load()
    record("begin", model.step)

    import wandb  # noqa: PLC0415 - takes a second, in which SIGTERM may come already

    run = wandb.init()
    while model.step < options.steps and not asked_to_end:
        step = model.step
        loss = improve(model, options.learning_rate)
        run.log({"loss": loss, "slope": model.slope, "offset": model.offset}, step=step)
        save(model)
        record("step", model.step)
        time.sleep(options.step_seconds)
    code = 0
    if model.step < options.steps:
        run.mark_preempting()
        save(model)
        code = PREEMPTED_EXIT_CODE
    run.finish(exit_code=code)
    record("end", model.step, code=code)
    return code


if __name__ == "__main__":
    sys.exit(main())
