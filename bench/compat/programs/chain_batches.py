# SPDX-License-Identifier: Apache-2.0
"""Chains of short kernels by the driver's interface alone: bench/programs/occupy, told by lines.

    chain_batches.py OCCUPY chains [--batches N] ...

The same program on a GPU and on the software device.
"""

import json
import subprocess
import sys

import steps


def main():
    program = subprocess.Popen([sys.argv.pop(1)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True)
    options = steps.options(["chains"], __doc__.splitlines()[0])

    def ask(line):
        program.stdin.write(line + "\n")
        program.stdin.flush()
        return json.loads(program.stdout.readline())

    json.loads(program.stdout.readline())  # it is ready
    answer = steps.Batches(options).run(lambda _: ask("chain 20 2 1 20000"))
    program.stdin.close()
    code = program.wait()
    steps.tell_value("chains", sorted(answer))
    sys.exit(code)


if __name__ == "__main__":
    main()
