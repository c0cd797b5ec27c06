"""A module that starts a thread of which Python does not know, after it has imported another one."""

import ctypes
import json.tool

thread = ctypes.c_ulong()
_libc = ctypes.CDLL(None)
_libc.pthread_create(ctypes.byref(thread), None, _libc.pause, None)
assert json.tool
