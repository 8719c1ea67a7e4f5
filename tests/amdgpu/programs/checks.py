# SPDX-License-Identifier: Apache-2.0
"""Checks of a library of arrays: what cupy_checks.py and jax_checks.py share."""
import hashlib
import sys

import numpy


class Checks:
    """`to_host`: the library's array as one of NumPy."""

    def __init__(self, to_host, tolerance):
        self.to_host, self.tolerance = to_host, tolerance

    def near(self, result, expected, tolerance=None):
        tolerance = tolerance or self.tolerance
        numpy.testing.assert_allclose(self.to_host(result), expected, rtol=tolerance,
                                      atol=tolerance)
        return result

    def same(self, result, expected):
        numpy.testing.assert_array_equal(self.to_host(result), expected)
        return result

    def run(self, checks):
        """Those that the command line names, or all."""
        for check in checks:
            if len(sys.argv) > 1 and check.__name__ not in sys.argv[1:]:
                continue
            try:
                result = numpy.ascontiguousarray(self.to_host(check()))
                print(check.__name__, "right", hashlib.sha256(result.tobytes()).hexdigest()[:12],
                      flush=True)
            except Exception as error:  # whatever a library raises is what is asked for
                said = " ".join(str(error).split())[:200]
                print(check.__name__, "stops:", type(error).__name__, said, flush=True)
