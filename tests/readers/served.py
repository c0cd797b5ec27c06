"""A process that serves a loader to which others attach: in scripts, and beside the process of a test."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import torch
from scripts import run_script

import shmloader
from shmloader.readers.server import serve

BEFORE = """
import faulthandler, os, resource, signal, sys, threading, time, traceback
import torch, torch.utils.data as data
import shmloader
from shmloader.readers.server import serve

NAME = f"test-{os.getpid()}"

class Tens(data.Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, k):
        return torch.full((700,), float(k)), k

def loader(dataset=None, **options):
    torch.manual_seed(5)
    return shmloader.DataLoader(dataset or Tens(), batch_size=4, num_workers=2, persistent_workers=True,
                                multiprocessing_context="fork", **options)

class Big(data.Dataset):  # no leaf of it is small
    def __init__(self, pairs=False):
        self.pairs = pairs

    def __len__(self):
        return 80

    def __getitem__(self, k):
        rows = torch.full((30_000,), float(k))
        return (rows, rows) if self.pairs else rows

def serve_for(readers, made):
    serve(made, NAME, needed=readers)

def alone():
    return [k.tolist() for _, k in loader(shuffle=True)]

def forked(function, *arguments):
    pid = os.fork()
    if not pid:
        faulthandler.dump_traceback_later(60, exit=True)
        failed = 1
        try:
            function(*arguments)
            failed = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(failed)
    return pid

def attached(**options):
    while True:
        try:
            return shmloader.attach(NAME, **options)
        except ConnectionError:
            time.sleep(0.02)

def end(server):
    os.kill(server, signal.SIGTERM)
    os.waitpid(server, 0)
"""


def printed(text: str) -> list[str]:
    """The lines that a script prints behind BEFORE."""
    ran = run_script(BEFORE + text, 120)
    assert "Traceback" not in ran.err and "Timeout" not in ran.err, ran.err
    return ran.out.splitlines()


@contextlib.contextmanager
def server_of(numbers: int, name: str) -> Iterator[None]:
    """A process that serves batches of two numbers, from 0 on, while the block runs."""
    pid = os.fork()
    if not pid:
        with contextlib.suppress(KeyboardInterrupt):
            data: Any = torch.arange(numbers)
            loader: Any = shmloader.DataLoader(
                data, 2, num_workers=1, persistent_workers=True, multiprocessing_context="fork"
            )
            serve(loader, name)
        os._exit(0)
    try:
        while True:
            with contextlib.suppress(ConnectionError):
                shmloader.attach(name)
                break
            time.sleep(0.01)
        yield
    finally:
        os.kill(pid, signal.SIGINT)
        os.waitpid(pid, 0)
