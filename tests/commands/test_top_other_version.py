"""`shmloader top` beside a ring of another shmloader's: it says that there is one."""

from __future__ import annotations

import os
import struct

import pytest

from shmloader.commands.line import main
from shmloader.core.onlooker import Onlooker, OtherVersion

MAGIC = 0x676E69726D6873


def test_it_reports_that_it_cannot_show_another_version(capsys):
    fd = os.memfd_create("shmloader")
    try:
        os.ftruncate(fd, 1 << 16)
        os.pwrite(fd, struct.pack("<QI", MAGIC, 99), 0)
        with pytest.raises(OtherVersion, match="version 99"):
            Onlooker(fd)
        main(["top", str(os.getpid()), "--once", "--interval", "0"])
    finally:
        os.close(fd)
    assert "of another version of shmloader" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["top", "--interval", "1e12"], ["doctor", "--batch-bytes", "0.4"]])
def test_a_number_that_is_too_large_or_too_small_is_refused(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "is not a " in capsys.readouterr().err
