#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rules of the source tree that no compiler checks.

    tidy.py ROOT [COMPILE_COMMANDS]

Prints "file:line: what is wrong" and exits with 1 when something is. What it checks:
  * which directory may include which (LAYERS), and where vendor headers may stand;
  * the SPDX line, 100 columns, no tab, no space at the end of a line;
  * the length of functions, and of files but tables;
  * words that must not stay (BANNED);
  * retired vocabulary (RETIRED), Markdown included;
  * names of types that two namespaces define (type_names.py);
  * the README's length (README_WORDS);
  * files are mapped, and their size is set, by hal/file_memory.h only;
  * whole files are read by hal/read_file.h only;
  * every source file is built (named by a CMakeLists.txt, or in the given compile_commands.json),
    every header is included.
"""
import json
import os
import pathlib
import re
import sys

import type_names

COLUMNS = 100
FUNCTION_LINES = 80
FILE_LINES = 600
TABLES = (".def",)
SUFFIXES = {".h", ".cpp", ".cu", ".def", ".py", ".cmake", ".sh", ".in", ".postinst", ".postrm",
            ".prerm"}
NAMES = {"CMakeLists.txt", "amd-silicon", "build", "demo", "install_tree", "lint", "repository",
         "run", "test"}
SKIPPED = {".git", "build", "dist", "shared", "__pycache__", ".cache"}

# What each directory may include from the others. The longest match counts; a directory may always
# include itself. "file.h" entries are single files. An entry does not permit what stands below it
# with a row of its own: "daemon" permits vitamind, not daemon/client.
LAYERS = {
    "hal": [],
    "runtime": ["hal"],
    "daemon": ["hal", "runtime", "scheduler", "daemon/protocol", "daemon/config", "daemon/arbiter",
               "daemon/jobs", "daemon/metrics", "daemon/server"],
    "daemon/server": ["hal", "runtime", "scheduler", "daemon", "daemon/protocol", "daemon/config",
                      "daemon/arbiter", "daemon/jobs", "daemon/metrics", "daemon/mps"],
    "daemon/arbiter": ["hal", "runtime", "scheduler", "daemon/protocol", "daemon/config",
                       "daemon/jobs", "daemon/metrics", "daemon/from_configuration.h",
                       "daemon/log.h", "daemon/settings.h"],
    "daemon/jobs": ["hal", "scheduler", "daemon/config"],
    "daemon/metrics": ["hal", "daemon/protocol"],
    "daemon/mps": ["hal", "runtime", "daemon/protocol", "daemon/config", "daemon/log.h"],
    # Linked into the preloaded libraries: nothing of vitamind.
    "daemon/client": ["hal", "runtime", "daemon/protocol", "scheduler"],
    "daemon/protocol": ["hal", "runtime/pool/layout.h"],
    "daemon/config": ["hal", "scheduler", "runtime/pool/layout.h", "runtime/problem.h"],
    # Decides over values.
    "scheduler": ["hal", "runtime/demand.h", "runtime/pool/layout.h", "runtime/profile/profile.h"],
    "scheduler/simulator": ["hal", "runtime", "scheduler"],
    "backends/soft": ["hal"],
    "backends/soft/libcuda": ["hal", "backends/soft"],
    "backends/soft/amdgpu": ["hal", "backends/soft"],
    "backends/cuda": ["hal"],
    "backends/hip": ["hal"],
    "interpose": ["hal", "runtime", "daemon/client", "daemon/protocol/device_lock.h",
                  "daemon/protocol/quota_file.h", "backends/cuda", "backends/hip",
                  "interpose/advice"],
    # Installed: programs include it alone.
    "interpose/advice": [],
    "tools": ["hal", "runtime", "scheduler", "scheduler/simulator", "daemon/protocol",
              "daemon/config", "daemon/arbiter/device_arbiter.h"],
    "deploy": ["hal", "runtime", "daemon/protocol", "daemon/config", "tools"],
    # The demo programs know nothing of Vitamin; their kernels are portable.
    "tools/demo": ["backends/soft/kernel.h"],
    "bench": ["hal", "runtime", "scheduler", "scheduler/simulator", "daemon", "daemon/arbiter",
              "daemon/client", "daemon/config", "daemon/jobs", "daemon/metrics", "daemon/protocol",
              "daemon/server", "backends", "interpose", "interpose/advice", "tools", "tests"],
    "tests": ["hal", "runtime", "scheduler", "scheduler/simulator", "daemon", "daemon/arbiter",
              "daemon/client", "daemon/config", "daemon/jobs", "daemon/metrics", "daemon/mps",
              "daemon/protocol", "daemon/server", "backends", "interpose", "interpose/advice",
              "tools", "bench", "deploy"],
}
# Who may include a vendor's header. Demo, tests and bench are ordinary programs.
VENDOR = re.compile(r"^(cuda\w*|nv\w+|hip/.*|hsa/.*|cublas\w*|cudnn\w*|cufft\w*)\.(h|hpp)$")
# Includes HIP's header where hipcc compiles it.
PORTABLE_KERNELS = "backends/soft/kernel.h"
VENDOR_DIRECTORIES = ("backends/cuda", "backends/hip", "backends/soft/libcuda",
                      "backends/soft/amdgpu", "interpose/libcuda", "interpose/libamdhip64",
                      "tools/demo", "tests", "bench")

# Written so that this file does not contain them itself.
BANNED = [
    (re.compile("^(" + "<" * 7 + "|" + ">" * 7 + ") "), "a merge that is not finished"),
    (re.compile("\\b(FIX" + "ME|TO" + "DO|XX" + "X)\\b"), "finish it or open an issue"),
    (re.compile("^using " + "namespace (?!std::[a-z_]*literals;)(?!.*// NOLINT: )"),
     "name what is used"),
    (re.compile("(?<![\\w.])/" + "(work|home|root|Users)/" + "[a-z]"), "a path of one machine"),
    (re.compile("std::" + "endl"), "use '\\n'"),
    (re.compile("DESIGN " + "section|design " + "brief|\\bfacts/" + "[a-z0-9]+[.]md"),
     "cite docs/design.md or state the reason"),
]
# Words that the project no longer uses (docs/glossary.md), and what to write. Results are kept as
# they were made.
RETIRED = {
    "foretold|foretell(?:s|ing)?": "predicted",
    "mend(?:s|ed|ing)?": "fix",
    "let[ _]go|lets go": "evict, disconnect",
    "folders?": "directory",
    "whoever|whomever": "name the subject",
    "(?:some|no|any|every)body": "name the subject",
    "heirs?": "transfer",
    "patience": "grace period, time-out",
    "knocks?": "handshake",
    "guests?": "users of the fallback partition",
    "right[ _]of[ _]way": "latency activity",
    "at_rest": "is_quiescent",
    "put_down": "close_grant",
    "set_aside": "reserved",
    "stand_in": "fake",
}
RETIRED_WORD = re.compile("(?<![A-Za-z])(?:" + "|".join(
    f"(?P<w{i}>{word})" for i, word in enumerate(RETIRED)) + ")(?![A-Za-z])", re.I)
# Texts that must stay: a metric and fields of `vitamin status --json`, which users' tools read
# (CHANGELOG.md); the system's user nobody; and two questions of tests/differential, which are part
# of kept traces.
PUBLISHED = re.compile(r'\bvitamind_let_go_total\b|"let_go(?:_users)?"|'
                       r'(?:getpwnam\(|user=)"nobody"|'
                       r'refused to whoever frees it again\?|Does whoever waits for an event wait ')
# These say which words are retired.
RETIRED_FREE = ("docs/glossary.md", "tests/tidy/tidy.py", "tests/tidy/tidy_test.py")
PROSE = SUFFIXES | {".md", ".toml", ".1", ".5", ".8"}
RETIRED_SKIPPED = SKIPPED | {"results"}
README_WORDS = 600
# A mapped file can end a process by SIGBUS, a larger one by SIGXFSZ. What simulates a device's
# memory maps it as a device would; a test does to itself what it likes.
FILE_MEMORY = "hal/file_memory.h"
MAPPING = re.compile(r"(?<![\w.])(mmap|mremap|f?truncate|(?:posix_)?fallocate)\s*\(")
MAPPING_FREE = (FILE_MEMORY, "tests/", "backends/soft/libcuda/graph_memory.cpp",
                "backends/soft/libcuda/ipc.cpp", "backends/soft/libcuda/memory.cpp",
                "backends/soft/amdgpu/kfd/")
# Throws out of a stream that does not throw when a read fails, as reads below /proc may.
FILE_ITERATOR = re.compile(r"\bistreambuf_iterator\b")
FILE_ITERATOR_FREE = ("hal/read_file.h", "tests/", "bench/", "tools/demo/")
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]')
# The first line of a function body at the left margin or in a namespace: clang-format closes it
# with a brace in the same column.
FUNCTION = re.compile(r"^(\s*)(?!namespace\b|struct\b|class\b|enum\b|union\b|extern\b|const\b|"
                      r"constexpr\b|inline constexpr\b|static const\b|\}|#|//)\S.*\{$")


def source_files(root):
    # Not below the directories that are skipped: other tests make and remove files there.
    for directory, below, names in os.walk(root):
        below[:] = sorted(set(below) - SKIPPED)
        for path in (pathlib.Path(directory, name) for name in sorted(names)):
            if path.is_file() and (path.suffix in SUFFIXES or path.name in NAMES):
                yield path.relative_to(root)


def layer_of(name):
    """The longest entry of LAYERS that holds this path, or None."""
    best = None
    for directory in LAYERS:
        if name.startswith(directory + "/") and (best is None or len(directory) > len(best)):
            best = directory
    return best


def include_problem(name, quote, target):
    layer = layer_of(name)
    if VENDOR.match(target) and name != PORTABLE_KERNELS:
        if not name.startswith(tuple(directory + "/" for directory in VENDOR_DIRECTORIES)):
            return f"vendor header <{target}> outside {', '.join(VENDOR_DIRECTORIES)}"
        return None
    if quote != '"' or layer is None:
        return None
    target_layer = layer_of(target)
    if target_layer is None or target_layer == layer:
        return None
    for allowed in LAYERS[layer]:
        if allowed in (target, target_layer):
            return None
        if allowed not in LAYERS and target.startswith(allowed + "/"):
            return None
    return f"{layer} must not include {target} (see LAYERS in tests/tidy/tidy.py)"


def declaration_line(lines, number):
    """The number of the line on which the declaration begins whose body opens on line `number`:
    its brackets may span several lines, and clang-format indents all but the first by what fits."""
    open_brackets = 0
    for at in range(number, max(0, number - 30), -1):
        text = lines[at - 1]
        open_brackets += sum(map(text.count, ")]")) - sum(map(text.count, "(["))
        if open_brackets <= 0:
            return at
    return number


def body_margin(margin, lines, number):
    """Where the body that opens on this line closes. Behind a constructor's initialisers, which
    clang-format indents by 4 (": first") and 6, that is further left."""
    if lines[number - 1].lstrip().startswith(": "):
        return margin[4:]
    for line in reversed(lines[max(0, number - 30):number - 1]):
        if not line.rstrip().endswith(","):
            return margin
        if line.lstrip().startswith(": "):
            return margin[6:]
    return margin


def function_problems(name, lines):
    opened = None
    for number, line in enumerate(lines, 1):
        if opened is None:
            match = FUNCTION.match(line)
            if match and "(" in "".join(lines[max(0, number - 4):number]):
                first = declaration_line(lines, number)
                # A rule of tests/differential is for the most part a table of calls.
                rule = lines[first - 1].startswith("VITAMIN_RULE(")
                margin = re.match(r"\s*", lines[first - 1])[0]
                opened = (number, body_margin(margin, lines, first), rule)
        elif line.startswith(opened[1] + "}"):
            length = number - opened[0] + 1
            if length > FUNCTION_LINES and not opened[2]:
                yield f"{name}:{opened[0]}: a function of {length} lines (most: {FUNCTION_LINES})"
            opened = None


def mapping_problems(name, text):
    if name.startswith(MAPPING_FREE) or not name.endswith((".h", ".cpp", ".cu")):
        return
    for call in MAPPING.finditer(text):
        statement = text[call.start():].split(";", 1)[0]
        line = text[text.rfind("\n", 0, call.start()) + 1:call.start()]
        if "//" not in line and "MAP_ANONYMOUS" not in statement:
            number = text.count("\n", 0, call.start()) + 1
            yield f"{name}:{number}: {call[1]}() of a file: use {FILE_MEMORY}"


def file_iterator_problems(name, text):
    if name.startswith(FILE_ITERATOR_FREE) or not name.endswith((".h", ".cpp", ".cu")):
        return
    for use in FILE_ITERATOR.finditer(text):
        number = text.count("\n", 0, use.start()) + 1
        yield f"{name}:{number}: an iterator of a stream throws: use hal/read_file.h"


def file_problems(name, text):
    lines = text.split("\n")
    if not any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:3]):
        yield f"{name}:1: no SPDX-License-Identifier in the first lines"
    if text and not text.endswith("\n"):
        yield f"{name}:{len(lines)}: no newline at the end of the file"
    for number, line in enumerate(lines, 1):
        where = f"{name}:{number}"
        if len(line) > COLUMNS:
            yield f"{where}: {len(line)} columns (most: {COLUMNS})"
        if "\t" in line:
            yield f"{where}: a tab"
        if line != line.rstrip():
            yield f"{where}: space at the end of the line"
        for pattern, advice in BANNED:
            if pattern.search(line):
                yield f"{where}: '{pattern.search(line)[0]}': {advice}"
        include = INCLUDE.match(line)
        if include and name.endswith((".h", ".cpp", ".cu")):
            problem = include_problem(name, include[1], include[2])
            if problem:
                yield f"{where}: {problem}"
    if len(lines) > FILE_LINES and not name.endswith(TABLES):
        yield f"{name}:1: {len(lines)} lines (most: {FILE_LINES})"
    if name.endswith((".h", ".cpp", ".cu")):
        yield from function_problems(name, lines)
        yield from mapping_problems(name, text)
        yield from file_iterator_problems(name, text)
    if name.endswith(".h") and "#pragma once" not in text:
        yield f"{name}:1: no #pragma once"


def prose_files(root):
    """What is written by people: sources and Markdown."""
    for directory, below, names in os.walk(root):
        below[:] = sorted(set(below) - RETIRED_SKIPPED)
        for path in (pathlib.Path(directory, name) for name in sorted(names)):
            if path.is_file() and (path.suffix in PROSE or path.name in NAMES):
                yield path.relative_to(root).as_posix()


def retired_words(text):
    """(line number, word, what to write) of each."""
    for number, line in enumerate(PUBLISHED.sub("", text).split("\n"), 1):
        for found in RETIRED_WORD.finditer(line):
            index = next(i for i in range(len(RETIRED)) if found[f"w{i}"])
            yield number, found[0], list(RETIRED.values())[index]


def vocabulary_problems(root):
    for name in prose_files(root):
        if name in RETIRED_FREE:
            continue
        for number, word, instead in retired_words((root / name).read_text(errors="replace")):
            yield f"{name}:{number}: '{word}' is retired: {instead}"


def readme_problems(root):
    page = root / "README.md"
    words = len(page.read_text(encoding="utf-8").split()) if page.exists() else 0
    if words > README_WORDS:
        yield f"README.md:1: {words} words (most: {README_WORDS})"


def unbuilt(files, compiled):
    """Sources that are not built and headers that no file includes. `compiled`: names that a build
    compiled. A name made with a variable ("${name}_test.cpp") counts for every file that it may
    mean, in directories of which that build compiled nothing."""
    configured = {str(pathlib.PurePosixPath(name).parent) for name in compiled}
    patterns = []
    cmake = {name: text for name, text in files.items()
             if name.endswith(("CMakeLists.txt", ".cmake"))}
    # Words of each CMake file, as paths relative to the root.
    built = set()
    for name, text in cmake.items():
        directory = pathlib.PurePosixPath(name).parent
        for word in re.findall(r"[\w./{}$-]+\.(?:cpp|h|def|in|py)\b", text):
            if re.search(r"\$\{[a-z_]+\}", word) and str(directory) not in configured:
                pattern = re.sub(r"\\\$\\\{[a-z_]+\\\}", r"\\w+", re.escape(f"{directory}/{word}"))
                patterns.append(re.compile(pattern))
            word = re.sub(r"^\$\{(PROJECT_SOURCE_DIR|CMAKE_SOURCE_DIR)\}/", "/", word)
            word = re.sub(r"^\$\{CMAKE_CURRENT_(SOURCE|LIST)_DIR\}/", "", word)
            path = pathlib.PurePosixPath(word[1:]) if word.startswith("/") else directory / word
            parts = []
            for part in path.parts:
                parts = parts[:-1] if part == ".." else parts + [part]
            built.add("/".join(parts))
    included = set()
    for name, text in files.items():
        directory = str(pathlib.PurePosixPath(name).parent)
        for target in re.findall(r'#\s*include\s+"([^"]+)"', text):
            included.add(target)
            included.add(f"{directory}/{target}")
    compiled = set(compiled)
    for name in files:
        if any(pattern.fullmatch(name) for pattern in patterns):
            continue
        if name.endswith(".cpp") and name not in built | included | compiled:
            yield f"{name}:1: no CMakeLists.txt builds this file"
        if name.endswith((".h", ".def")) and name not in built | included:
            yield f"{name}:1: nothing includes this file"


def compiled_files(root, path):
    """Names, relative to the root, of what a compile_commands.json compiles.

    A source that CMake makes for a unity build stands for those that it includes.
    """
    root = root.resolve()
    paths = set()
    for entry in json.loads(path.read_text()):
        source = pathlib.Path(entry["directory"], entry["file"]).resolve()
        paths.add(source)
        if source.parent.name == "Unity" and source.exists():
            paths.update(map(pathlib.Path, re.findall(r'#include "(/[^"]+)"', source.read_text())))
    return {path.relative_to(root).as_posix() for path in paths if path.is_relative_to(root)}


def check(root, compiled=frozenset(), shared_types=type_names.SHARED):
    files = {}
    found = []
    for relative in source_files(root):
        name = relative.as_posix()
        try:
            files[name] = (root / relative).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            found.append(f"{name}:1: not UTF-8")
    for name, text in files.items():
        found.extend(file_problems(name, text))
    found.extend(unbuilt(files, compiled))
    found.extend(type_names.problems(files, shared_types))
    found.extend(vocabulary_problems(root))
    found.extend(readme_problems(root))
    return found


def main():
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    root = pathlib.Path(sys.argv[1])
    compiled = compiled_files(root, pathlib.Path(sys.argv[2])) if len(sys.argv) == 3 else set()
    found = check(root, compiled)
    for problem in found:
        print(problem)
    print(f"{len(found)} problems" if found else "tidy")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
