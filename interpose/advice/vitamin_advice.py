# SPDX-License-Identifier: Apache-2.0
"""What a Python engine can tell Vitamin of its work. Needs no compiler, and nothing where Vitamin
is not: then every call does nothing and answers False.

    import vitamin_advice as vitamin

    with vitamin.decode(deadline_ms=30):
        logits = model(token)

    vitamin.expect(vitamin.PREFILL, stream=stream.cuda_stream, ready_ms=2)

Advice changes where and when a launch runs, never its results. `stream` is the vendor's handle as
an integer (torch.cuda.Stream.cuda_stream); None is the default stream of the current device. The
ranges of a `with` are the calling thread's; those of on_stream() a stream's, from any thread.
"""
import contextlib
import ctypes

UNKNOWN, PREFILL, DECODE, BEST_EFFORT = range(4)
OK, INACTIVE, INVALID, TOO_DEEP = 0, -1, -2, -3
_ABI = 1


class _Work(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint32), ("kind", ctypes.c_uint32),
                ("processors", ctypes.c_uint32), ("unused", ctypes.c_uint32),
                ("ready_in_ns", ctypes.c_uint64), ("deadline_in_ns", ctypes.c_uint64),
                ("queued_ns", ctypes.c_uint64)]


_STREAM, _OF_WORK = ctypes.c_void_p, ctypes.POINTER(_Work)


def _function(*arguments):
    return ctypes.CFUNCTYPE(ctypes.c_int, *arguments)


class _Functions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint32), ("abi", ctypes.c_uint32),
                ("active", _function()),
                ("work_begin", _function(_OF_WORK)),
                ("work_end", _function()),
                ("work_deadline", _function(ctypes.c_uint64)),
                ("stream_begin", _function(_STREAM, _OF_WORK)),
                ("stream_end", _function(_STREAM)),
                ("expect", _function(_STREAM, _OF_WORK)),
                ("cancel", _function(_STREAM)),
                ("iteration_end", _function(_STREAM))]


def _offered():
    process, found = ctypes.CDLL(None), []
    for name in ("vitamin_advice_cuda", "vitamin_advice_hip"):
        offer = getattr(process, name, None)
        if offer is None:
            continue
        offer.restype = ctypes.POINTER(_Functions)
        functions = offer()
        if functions and functions.contents.abi == _ABI:
            found.append(functions.contents)
    return found


_libraries = _offered()


def _tell(name, *arguments):
    answers = [getattr(library, name)(*arguments) for library in _libraries]
    if INVALID in answers:
        raise ValueError(f"vitamin: {name} was called with something that cannot be")
    return OK in answers


def _work(kind, processors, ready_ms, deadline_ms, queued_ms):
    if kind not in range(4):
        raise ValueError(f"vitamin: {kind!r} is no kind of work: use PREFILL, DECODE, BEST_EFFORT")
    return ctypes.byref(_Work(ctypes.sizeof(_Work), kind, processors, 0, int(ready_ms * 1e6),
                              int(deadline_ms * 1e6), int(queued_ms * 1e6)))


def offered():
    """Whether the process runs under Vitamin, which may have no launch of it yet."""
    return bool(_libraries)


def active():
    """Whether launches of this process are bound by Vitamin (from its first launch on)."""
    return _tell("active")


@contextlib.contextmanager
def work(kind=UNKNOWN, *, processors=0, ready_ms=0, deadline_ms=0, queued_ms=0):
    """The calling thread's launches are this, inside the `with`."""
    _tell("work_begin", _work(kind, processors, ready_ms, deadline_ms, queued_ms))
    try:
        yield
    finally:
        _tell("work_end")


def prefill(**facts):
    return work(PREFILL, **facts)


def decode(**facts):
    return work(DECODE, **facts)


def best_effort(**facts):
    return work(BEST_EFFORT, **facts)


def deadline(milliseconds):
    """Another deadline for the innermost `with` of this thread."""
    return _tell("work_deadline", int(milliseconds * 1e6))


@contextlib.contextmanager
def on_stream(stream, kind=UNKNOWN, *, processors=0, ready_ms=0, deadline_ms=0, queued_ms=0):
    """What follows on the stream is this, inside the `with`, whichever thread submits it."""
    _tell("stream_begin", stream, _work(kind, processors, ready_ms, deadline_ms, queued_ms))
    try:
        yield
    finally:
        _tell("stream_end", stream)


def expect(kind=UNKNOWN, *, stream=None, processors=0, ready_ms=0, deadline_ms=0, queued_ms=0):
    """Work is expected on the stream that is not submitted yet: room may be made for it."""
    return _tell("expect", stream, _work(kind, processors, ready_ms, deadline_ms, queued_ms))


def cancel(stream=None):
    """It is not any more."""
    return _tell("cancel", stream)


def iteration_end(stream=None):
    """The stream has ended an iteration: a good moment to hand over."""
    return _tell("iteration_end", stream)
