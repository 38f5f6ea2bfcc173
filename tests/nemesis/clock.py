"""A redis-server whose wall clock can jump, by a library put in front of libc's (clock.c).

Owns the building of the library and the file that holds the jump. It needs a C compiler; without
one the clock faults are left out, with a reason.
"""

import os
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")
COMPILERS = ("cc", "gcc", "clang")


@dataclass
class JumpingClock:
    """The built library and the present jump."""

    library: Path
    file: Path
    seconds: float = 0.0

    def set(self, seconds: float) -> None:
        """The server's clock is now `seconds` ahead of the kernel's. Written at one go."""
        self.seconds = seconds
        with self.file.open("r+b") as file:
            os.pwrite(file.fileno(), struct.pack("d", seconds), 0)

    def program(self, server: str) -> str:
        """A script that starts `server` with this clock."""
        script = self.library.with_name("redis-with-clock")
        script.write_text(
            f'#!/bin/sh\nexec env LD_PRELOAD="{self.library}" JUMP_FILE="{self.file}" '
            f'"{server}" "$@"\n'
        )
        script.chmod(0o700)
        return str(script)


def build_clock(directory: Path) -> JumpingClock | None:
    """Compile the library into `directory`; None without a compiler."""
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        return None
    library, file = directory / "clock.so", directory / "jump"
    file.write_bytes(struct.pack("d", 0.0))
    done = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-lm"],
        capture_output=True,
        check=False,
    )
    return JumpingClock(library, file) if done.returncode == 0 else None
