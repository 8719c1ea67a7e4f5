# SPDX-License-Identifier: Apache-2.0
"""Why does Qwen3 training, as usually written, differ from itself? See workloads.py --cause.

    cause.py [--out DIR] [--steps N]
"""

import argparse
import pathlib
import sys

import harness


def verdict(line):
    if "error" in line:
        return "cannot run: " + line["error"][:100]
    if line["equal"]:
        return "equal"
    return (f"differs at step {line['first_step']} in {line['gradients']} gradients, the last ones "
            + ", ".join(line["last_in_the_network"][-2:]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=harness.default_output())
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--arguments", default="", help="more words for workloads.py")
    options = parser.parse_args()
    results = harness.Results(options.out, "cause")
    script = pathlib.Path(__file__).resolve().parent / "workloads.py"
    command = [sys.executable, str(script), "--cause", "--steps", str(options.steps)]
    result = harness.run([*command, *options.arguments.split()], 200)
    for line in result.lines:
        results.add(line)
    print(harness.table([[line["form"], verdict(line)] for line in result.lines
                         if line.get("name") == "cause"], ["form", "twice"]))
    print(result.why())
    sys.exit(0 if result.ok else 1)


if __name__ == "__main__":
    main()
