#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program that holds device memory, for park_test.py: park_program.py MIB KERNELS

Reads commands, one a line, and answers each with a line:
    sum      a hash of the memory, and its address
    launch   a kernel adds 1 to the first word; the answer is that word
    take N   takes N MiB more and answers the driver's code
    export   an IPC handle of the memory
    open HANDLE   opens another program's memory by it: the driver's code
    peek     the first word of that
    seen     a hash of that
    close    closes it: the driver's code
    lend     takes 1 MiB more, with the same contents: an IPC handle of it
    unlend   frees that: the driver's code
    hold PATH   opens a file and maps it
    drop     ends that
"""
import ctypes
import hashlib
import mmap
import os
import sys

CU = ctypes.CDLL("libcuda.so.1")
MIB = 1 << 20
SHOWN = MIB  # bytes at the beginning that have known contents


def must(code):
    if code != 0:
        sys.exit(f"park_program: error {code}")


def take(mib):
    address = ctypes.c_uint64()
    return CU.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(mib * MIB)), address


def read(address, count):
    data = ctypes.create_string_buffer(count)
    must(CU.cuMemcpyDtoH_v2(data, address, ctypes.c_size_t(count)))
    return data.raw


def launch(function, address):
    argument = ctypes.c_uint64(address.value)
    arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(argument), ctypes.c_void_p))
    must(CU.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, arguments, None))
    must(CU.cuCtxSynchronize())
    return int.from_bytes(read(address, 4), "little")


class Handle(ctypes.Structure):
    """CUipcMemHandle, which is passed by value."""
    _fields_ = [("reserved", ctypes.c_char * 64)]


def export(address):
    handle = Handle()
    must(CU.cuIpcGetMemHandle(ctypes.byref(handle), address))
    return bytes(handle).hex()


def fill(address):
    must(CU.cuMemcpyHtoD_v2(address, hashlib.shake_256(b"park").digest(SHOWN),
                            ctypes.c_size_t(SHOWN)))


def hash_of(address):
    return hashlib.sha256(read(address, SHOWN)).hexdigest()


def lend(lent):
    code, address = take(1)
    must(code)
    fill(address)
    lent.value = address.value
    return export(address)


def hold(path, held):
    held.append(open(path, "r+b"))
    held.append(mmap.mmap(held[0].fileno(), 0))
    return 0


def drop(held):
    while held:
        held.pop().close()
    return 0


def answer(word, more, address, function, opened, lent, held):
    if word == "sum":
        return hash_of(address), address.value
    if word == "seen":
        return hash_of(opened)
    if word == "lend":
        return lend(lent)
    if word == "unlend":
        return CU.cuMemFree_v2(lent)
    if word == "hold":
        return hold(more[0], held)
    if word == "drop":
        return drop(held)
    if word == "launch":
        return launch(function, address)
    if word == "export":
        return export(address)
    if word == "open":
        handle = Handle.from_buffer_copy(bytes.fromhex(more[0]))
        return CU.cuIpcOpenMemHandle_v2(ctypes.byref(opened), handle, 1)
    if word == "peek":
        return int.from_bytes(read(opened, 4), "little")
    if word == "close":
        return CU.cuIpcCloseMemHandle(opened)
    return take(int(more[0]))[0]


def main():
    must(CU.cuInit(0))
    context, module, function = (ctypes.c_void_p() for _ in range(3))
    must(CU.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    must(CU.cuCtxSetCurrent(context))
    with open(sys.argv[2], "rb") as file:
        image = file.read()
    must(CU.cuModuleLoadData(ctypes.byref(module), image))
    must(CU.cuModuleGetFunction(ctypes.byref(function), module, b"well"))
    code, address = take(int(sys.argv[1]))
    must(code)
    fill(address)
    print(os.getpid(), flush=True)
    opened, lent, held = ctypes.c_uint64(), ctypes.c_uint64(), []
    for line in sys.stdin:
        word, *more = line.split()
        said = answer(word, more, address, function, opened, lent, held)
        print(*(said if isinstance(said, tuple) else (said,)), flush=True)


if __name__ == "__main__":
    main()
