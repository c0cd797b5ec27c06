"""The process that is forked for each script of the tests: NOTE [ Scripts ] in scripts.py.

It is a program of its own, and forks at its top level: the forked process leaves the loop, runs the script in there,
and its interpreter ends behind that as it does behind any script.  The server has one thread, waits for a request or
for a script's end, and reports both.  It ends when the socket is closed.
"""

# ruff: noqa: F401
import gc
import json
import multiprocessing.popen_fork
import multiprocessing.queues
import os
import random
import selectors
import socket
import sys
import types

# What most scripts import, and what the modules of tests import that some scripts use.
import numpy.random
import psutil
import pytest
import torch.utils.data
import tqdm

import shmloader
import shmloader.trainer.iterator
import shmloader.worker.loop


def run(path: str) -> None:
    """Run this file as the program."""
    main = types.ModuleType("__main__")
    main.__file__ = path
    main.__builtins__ = __builtins__
    sys.modules["__main__"] = main
    sys.argv = [path]
    sys.path[0] = os.path.dirname(path)
    with open(path) as file:
        text = file.read()
    exec(compile(text, path, "exec"), main.__dict__)


def forked(request: dict[str, str], pipes: list[int]) -> bool:
    """Fork; True in the child, which has become what a new process of the tests is."""
    pid = os.fork()
    if pid:
        children[os.pidfd_open(pid)] = pid
        connection.send(json.dumps(pid).encode())
        return False
    os.setsid()
    os.chdir(request["folder"])
    for target, pipe in zip((1, 2), pipes, strict=True):
        os.dup2(pipe, target)
    return True


# What is imported stays.  A collection in a script would copy its pages.
gc.collect()
gc.freeze()
connection = socket.socket(fileno=int(sys.argv[1]))
children: dict[int, int] = {}  # by pidfd
assert len(os.listdir("/proc/self/task")) == 1, "a thread would be missing in the scripts"
script = ""
while not script:
    with selectors.DefaultSelector() as selector:
        for each in (connection, *children):
            selector.register(each, selectors.EVENT_READ)
        ready = {key.fd for key, _ in selector.select()}
    for pidfd in ready & children.keys():
        _, status = os.waitpid(children.pop(pidfd), 0)
        os.close(pidfd)
        connection.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())
    if connection.fileno() in ready:
        received, pipes, _, _ = socket.recv_fds(connection, 1 << 16, 2)
        if not received:
            break
        asked = json.loads(received)
        if forked(asked, pipes):
            script = asked["path"]
        for pipe in pipes:
            os.close(pipe)
if script:
    for pidfd in children:
        os.close(pidfd)
    connection.close()
    run(script)
