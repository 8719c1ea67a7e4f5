# SPDX-License-Identifier: Apache-2.0
"""Memory of a GPU by NVML, which knows nothing of CUDA_VISIBLE_DEVICES: CUDA is asked which GPU a
program uses that names none."""
import ctypes
import functools
import os
import subprocess
import sys

# In a process of its own: this one stays without CUDA, and no server of MPS is started for it.
FIRST_DEVICE = """
import ctypes
cuda, uuid = ctypes.CDLL("libcuda.so.1"), (ctypes.c_ubyte * 16)()
if cuda.cuInit(0) == 0 and cuda.cuDeviceGetUuid_v2(uuid, 0) == 0:
    print(bytes(uuid).hex())
"""


@functools.cache
def first_uuid():
    """Of CUDA's device 0 in a program of this environment, as NVML writes it without its "GPU-".
    Empty: there is none."""
    try:
        said = subprocess.run([sys.executable, "-c", FIRST_DEVICE], capture_output=True, text=True,
                              env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"},
                              timeout=60, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "-".join((said[:8], said[8:12], said[12:16], said[16:20], said[20:])) if said else ""


class Device:
    """CUDA's device 0 in a program of this environment; nothing is known without NVML."""

    def __init__(self):
        self._nvml, self._device = None, ctypes.c_void_p()
        try:
            nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        if nvml.nvmlInit_v2() == 0 and any(
                nvml.nvmlDeviceGetHandleByUUID(f"{kind}-{first_uuid()}".encode(),
                                               ctypes.byref(self._device)) == 0
                for kind in ("GPU", "MIG")):
            self._nvml = nvml

    def memory(self):
        """Total, free and used bytes."""
        numbers = (ctypes.c_ulonglong * 3)()
        if self._nvml is None or self._nvml.nvmlDeviceGetMemoryInfo(self._device, numbers) != 0:
            return None
        return dict(zip(("total", "free", "used"), numbers))

    def used(self):
        memory = self.memory()
        return None if memory is None else memory["used"]
