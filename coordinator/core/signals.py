"""Signal names and numbers of Linux, as data: `core` may not import `signal`.

Source: signal(7), "Standard signals", column x86/ARM and most others. SIGKILL and SIGSTOP are left
out of what a user may send as a *graceful* signal, not of what is known.
"""

NUMBERS: dict[str, int] = {
    "SIGHUP": 1,
    "SIGINT": 2,
    "SIGQUIT": 3,
    "SIGILL": 4,
    "SIGTRAP": 5,
    "SIGABRT": 6,
    "SIGBUS": 7,
    "SIGFPE": 8,
    "SIGKILL": 9,
    "SIGUSR1": 10,
    "SIGSEGV": 11,
    "SIGUSR2": 12,
    "SIGPIPE": 13,
    "SIGALRM": 14,
    "SIGTERM": 15,
    "SIGSTKFLT": 16,
    "SIGCHLD": 17,
    "SIGCONT": 18,
    "SIGSTOP": 19,
    "SIGTSTP": 20,
    "SIGTTIN": 21,
    "SIGTTOU": 22,
    "SIGURG": 23,
    "SIGXCPU": 24,
    "SIGXFSZ": 25,
    "SIGVTALRM": 26,
    "SIGPROF": 27,
    "SIGWINCH": 28,
    "SIGIO": 29,
    "SIGPWR": 30,
    "SIGSYS": 31,
}
NAMES: dict[int, str] = {number: name for name, number in NUMBERS.items()}


def signal_number(text: str) -> int:
    """The number of "TERM", "sigterm", "SIGTERM" or "15".

    Raises ValueError that lists the known signals.
    """
    word = text.strip().upper()
    if word.isdecimal() and int(word) in NAMES:
        return int(word)
    number = NUMBERS.get(word if word.startswith("SIG") else f"SIG{word}")
    if number is None:
        known = ", ".join(name.removeprefix("SIG") for name in NUMBERS)
        raise ValueError(f"unknown signal {text!r}; use one of {known}")
    return number


def signal_name(number: int) -> str:
    """The name of signal `number`, or "SIG<number>" for one without a name here."""
    return NAMES.get(number, f"SIG{number}")
