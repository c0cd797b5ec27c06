"""Whether an exception comes from the handler of a signal.

NOTE [ Handlers ]

A handler runs at any line of Python in the main thread: in the user's sampler, or where a batch is read.  Its exception
comes out there, although that code did not fail.  If it is a KeyboardInterrupt, its class alone shows that it came from
a handler.  A handler may also raise an Exception: a watchdog's TimeoutError, or torch's RuntimeError for a worker that
died.  It must do what KeyboardInterrupt does: reach the user as it is, and lose nothing.  So before the code lets an
exception take the place of a batch, or takes it for the end of a sampler, it calls is_handlers(), which returns whether
a handler raised the exception.

A frame of the traceback is a handler's in two cases.  First, it runs the code of a handler that is installed now.
Second, one of the arguments of its function is a frame, that of the function's caller.  Only Python itself passes that,
and only to handlers: handler(number, frame).  The second case is needed because a handler may install another one
before it raises.
"""

import signal

cdef list numbers = sorted(signal.valid_signals())

cdef enum:
    HAS_ARGS = 4    # CO_VARARGS of Python's module inspect: a function has *args


cdef object code_of(handler):
    """The code of a handler that no other function has; None if it is not written in Python."""
    handler = getattr(handler, "func", handler)         # functools.partial
    handler = getattr(handler, "__func__", handler)     # a method
    while hasattr(handler, "__wrapped__"):              # all functions of one decorator begin with the same code
        handler = handler.__wrapped__
    code = getattr(handler, "__code__", None)
    return getattr(getattr(type(handler), "__call__", None), "__code__", None) if code is None else code


cdef bint has_interrupted(frame) except -1:
    """Whether a function was called with its caller's frame, as a handler is."""
    code, back, values = frame.f_code, frame.f_back, frame.f_locals
    if back is None:
        return False
    for name in code.co_varnames[:code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & HAS_ARGS)]:
        value = values.get(name)
        if value is back or (type(value) is tuple and len(value) == 2 and value[1] is back):
            return True
    return False


def is_handlers(error) -> bool:
    """Whether a signal's handler has raised this exception, which was caught: NOTE [ Handlers ]."""
    # The first frame caught it, so it is no handler's.  And f_locals would make a copy of its variables, with the error
    # in it.  The two would then live until the collector runs, and with them a slot.
    traceback = error.__traceback__ and error.__traceback__.tb_next
    codes = None
    while traceback is not None:
        frame = traceback.tb_frame
        if codes is None:
            codes = {code_of(handler) for handler in map(signal.getsignal, numbers) if callable(handler)} - {None}
        if frame.f_code in codes or has_interrupted(frame):
            return True
        traceback = traceback.tb_next
    return False
