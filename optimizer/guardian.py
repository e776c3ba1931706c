"""Runs one command so that nothing of it outlives its owner; started by :mod:`optimizer.processes`, never imported.

    python -I -S guardian.py CONTROL_FD GRACE_S [--remove PATH]... -- COMMAND...

The owner holds the write end of a pipe whose read end is CONTROL_FD. When a byte comes (``stop()``) or that end closes
for whatever reason (exit, SIGKILL), the guardian ends the command: SIGTERM, GRACE_S seconds, SIGKILL, then every
descendant, also those that left the process group: the guardian is their subreaper, so orphans come back to it. Last it
removes the given paths (private directories, shared-memory files). Its exit status is the command's, or 128 + signal.
Should the guardian itself be killed, the kernel kills the command with it.

Only the standard library, no site: it starts in tens of milliseconds, and a broken environment cannot stop it.
"""

import ctypes
import glob
import os
import select
import shutil
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# A process in uninterruptible sleep (a driver that hangs) does not die of SIGKILL: do not wait for it for ever.
LAST_WAIT_S = 20.0

libc = ctypes.CDLL(None, use_errno=True)


def children(pid: int) -> list[int]:
    found = []
    for task in glob.glob(f"/proc/{pid}/task/*/children"):
        try:
            with open(task, encoding="ascii") as file:
                found += [int(word) for word in file.read().split()]
        except OSError:
            continue
    return found


def end_descendants() -> None:
    """Kills until there is none left. A process may fork while it is being killed, hence the loop."""
    deadline = time.monotonic() + LAST_WAIT_S
    while time.monotonic() < deadline:
        offspring = children(os.getpid())
        if not offspring:
            return
        for pid in offspring:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def reap_adopted(child: int) -> None:
    """Orphans that came to the guardian and ended; never the command itself, whose status is still wanted."""
    try:
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != child:
            os.waitpid(ended.si_pid, 0)
    except ChildProcessError:
        return


def remove(path: str) -> None:
    # A path that exists is meant as it is, whatever brackets are in it.
    for match in [path] if os.path.lexists(path) else glob.glob(path):
        if os.path.isdir(match) and not os.path.islink(match):
            shutil.rmtree(match, ignore_errors=True)
        else:
            try:
                os.unlink(match)
            except OSError:
                continue


def main(arguments: list[str]) -> int:
    split = arguments.index("--")
    options, command = arguments[:split], arguments[split + 1 :]
    control, grace_s = int(options[0]), float(options[1])
    paths = [value for flag, value in zip(options[2::2], options[3::2], strict=True) if flag == "--remove"]
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Ctrl-C in a terminal reaches the whole foreground group: the owner decides what it means, not the guardian.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        child = subprocess.Popen(
            command, start_new_session=True, close_fds=True, restore_signals=True, preexec_fn=in_command
        )
    except OSError as error:
        print(f"guardian: cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    status = None
    while status is None:
        ready, _, _ = select.select([control, wake_read], [], [])
        if wake_read in ready:
            os.read(wake_read, 4096)
            status = child.poll()
            reap_adopted(child.pid)
        if control in ready and status is None:
            child.send_signal(signal.SIGTERM)
            try:
                status = child.wait(timeout=grace_s)
            except subprocess.TimeoutExpired:
                child.kill()
                try:
                    status = child.wait(timeout=LAST_WAIT_S)
                except subprocess.TimeoutExpired:
                    status = -signal.SIGKILL
    end_descendants()
    for path in paths:
        remove(path)
    return status if status >= 0 else 128 - status


def in_command() -> None:
    """Between fork and exec."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
