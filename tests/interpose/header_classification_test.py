# SPDX-License-Identifier: Apache-2.0
"""Every function of the installed cuda.h whose place among stream operations matters has a row in
interpose/libcuda/driver.def, and the library exports what the rows say and nothing else.

Environment: CXX, CUDA_INCLUDE (directory of cuda.h), SOURCE (root of the tree), LIBRARY (the built
libvitamin_cuda.so), SANITIZED ("1": the library was built with a sanitizer).
"""
import functools
import os
import pathlib
import re
import subprocess
import unittest

DEF = "interpose/libcuda/driver.def"
MEMORY = "interpose/libcuda/memory.txt"

# Functions without a stream or event in their parameters that all the same act on streams: they run
# on the default stream, wait for work, or take away what queued work still uses.
ORDERED = re.compile(
    r"cuMemcpy|cuMemset(?!MemPool)|cuLaunch|cuParamSet|cuFuncSet|cuKernelSet"
    r"|cuMem(Free|FreeHost|HostUnregister|Unmap|Release|AddressFree|PoolDestroy|PoolTrimTo)$"
    r"|cu(Array|MipmappedArray|TexObject|SurfObject)Destroy$|cuIpcCloseMemHandle$"
    r"|cuDestroyExternal|cuGraphicsUnregister|cuMulticastUnbind"
    r"|cu(Module|Library)(Load|Unload)|cuFuncLoad"
    r"|cuCtx(Synchronize|Destroy|Detach|SetLimit|SetCacheConfig|SetSharedMemConfig"
    r"|ResetPersisting)|cuDevicePrimaryCtx(Retain|Release|Reset)|cuGreenCtxDestroy"
    r"|cuThreadExchangeStreamCaptureMode|cuCheckpointProcessLock|cuGraphInstantiate"
    r"|cuGraph(Exec)?(Launch|Upload|Destroy|Update)$|cuGetProcAddress|cuInit$")

# Functions that may take memory of the device, give it back or say how much there is: by their
# names, or because their parameters hold pools, physical memory, arrays or addresses to be filled.
TAKES = re.compile(
    r"cu(Mem(?!cpy|set)|\w*Alloc|Array|Mipmapped|\w*Create|\w*Import|\w*Open|\w*Load|\w*TotalMem"
    r"|\w*MemPool|\w*GraphMem|Multicast|CtxSetLimit|\w*Retain|\w*Reset|\w*Register|\w*Instantiate"
    r"|\w*GetInfo|\w*Trim|\w*Mapped|\w*Heap|\w*Upload|GraphLaunch|GraphAddMem(Alloc|Free))")
HOLDS = re.compile(r"CUmemoryPool|AllocationHandle|CUmemPoolProps|CUmemAllocationProp|CUarray\s*\*"
                   r"|CUmipmappedArray\s*\*|CUdeviceptr\w*\s*\*")
# The treatments of driver.def that rows of memory.txt ask for.
TREATMENTS = {
    "CHARGED": re.compile(r"Charges|Manual<&(physical|pool)_create>"),
    "RETURNED": re.compile(r"GivesBack<|Settles<|Ends\w+<|Manual<&(physical_|pool_|graph_trim)"),
    "BOUNDED": re.compile(r"Manual<&(memory_info|total_memory)<"),
}
UNTREATED = {"GRAPH", "EXPORTER", "HOST", "OVERHEAD", "NOTHING"}


def base_name(symbol):
    return re.sub(r"_v\d$", "", re.sub(r"_(ptsz|ptds)$", "", symbol))


@functools.cache
def declarations():
    """cuda.h as the compiler sees it, every variant under its own name."""
    program = "#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n"
    return subprocess.run(
        [os.environ["CXX"], "-E", "-P", "-xc++", "-I", os.environ["CUDA_INCLUDE"], "-"],
        input=program, capture_output=True, text=True, check=True).stdout


def functions_of(text):
    """{symbol: parameter text}"""
    found = {}
    for match in re.finditer(r"\b(cu[A-Z]\w*)\s*\(([^()]*)\)\s*;", text):
        found[match[1]] = match[2]
    return found


def blocks_of(text):
    """[(names of the type, body)] of every struct and union."""
    blocks = []
    for match in re.finditer(r"\b(?:struct|union)\s+(\w*)\s*\{", text):
        depth, at = 1, match.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        after = re.match(r"\s*([\w\s,*]*?)(?:__attribute__\(\(.*?\)\))?\s*;", text[at:])
        names = {match[1]} | set(re.findall(r"\w+", after[1] if after else ""))
        blocks.append((names - {""}, text[match.end():at - 1]))
    return blocks


def carriers_of(text):
    """Names of types that hold a stream or an event, at any depth."""
    carriers = {"CUstream", "CUevent"}
    aliases = re.findall(r"typedef\s+(?:struct\s+|union\s+)?(\w+)\s+(\w+)\s*;", text)
    blocks = blocks_of(text)
    while True:
        before = len(carriers)
        for names, body in blocks:
            if carriers.intersection(re.findall(r"\w+", body)):
                carriers |= names
        carriers |= {new for old, new in aliases if old in carriers}
        if len(carriers) == before:
            return carriers


def classified_of(text, version):
    """({symbol: since} of the hooks, {symbol} that are passed) for this CUDA_VERSION."""
    hooks, passed, open_blocks = {}, set(), []
    for line in text.splitlines():
        if match := re.match(r"#if CUDA_VERSION >= (\d+)$", line):
            open_blocks.append(version >= int(match[1]))
        elif line == "#endif":
            open_blocks.pop()
        elif not all(open_blocks):
            continue
        elif match := re.match(r"VITAMIN_HOOK\((\w+), (\d+), (.+)\)$", line):
            hooks[match[1]] = int(match[2])
        elif match := re.match(r'VITAMIN_PASS\((\w+), "(.+)"\)$', line):
            passed.add(match[1])
    return hooks, passed


def unclassified(header, hooks, passed):
    carriers = carriers_of(header)
    return sorted(
        symbol for symbol, parameters in functions_of(header).items()
        if symbol not in hooks and symbol not in passed
        and (carriers.intersection(re.findall(r"\w+", parameters))
             or ORDERED.match(base_name(symbol))))


class HeaderClassification(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        header = pathlib.Path(os.environ["CUDA_INCLUDE"])
        cls.version = int(re.search(r"#define CUDA_VERSION (\d+)",
                                    (header / "cuda.h").read_text())[1])
        cls.typedefs = (header / "cudaTypedefs.h").read_text()
        rows = (pathlib.Path(os.environ["SOURCE"]) / DEF).read_text()
        cls.hooks, cls.passed = classified_of(rows, cls.version)

    def test_every_stream_ordered_function_of_the_header_is_classified(self):
        self.assertGreater(len(functions_of(declarations())), 500)
        self.assertEqual(unclassified(declarations(), self.hooks, self.passed), [])

    def test_every_row_names_a_function_of_the_header(self):
        known = functions_of(declarations())
        self.assertEqual([s for s in [*self.hooks, *self.passed] if s not in known], [])

    def test_nothing_is_classified_twice(self):
        self.assertEqual(sorted(self.passed.intersection(self.hooks)), [])
        rows = re.findall(r"^VITAMIN_(?:HOOK|PASS)\((\w+)",
                          (pathlib.Path(os.environ["SOURCE"]) / DEF).read_text(), re.MULTILINE)
        self.assertEqual(len(rows), len(set(rows)))

    def test_every_version_of_a_hooked_function_can_be_looked_up(self):
        # The fallback of cuGetProcAddress goes by name, version and per-thread flag.
        keys = {(base_name(s), since, bool(re.search("_pt[sd][sz]$", s)))
                for s, since in self.hooks.items()}
        bases = {base for base, _, _ in keys}
        wanted = {(m[1], int(m[2]), m[3] is not None) for m in re.finditer(
            r"\bPFN_(cu\w+?)_v(\d+)(_ptsz|_ptds)?\)", self.typedefs) if m[1] in bases}
        self.assertGreater(len(wanted), 250)
        self.assertEqual(sorted(wanted - keys), [])

    def test_the_check_finds_a_new_function_with_a_stream(self):
        header = declarations() + "CUresult cuNewThing(int n, CUstream hStream);\n"
        self.assertEqual(unclassified(header, self.hooks, self.passed), ["cuNewThing"])

    def test_the_check_finds_a_stream_that_hides_in_a_nested_structure(self):
        header = declarations() + """
            typedef struct Inner_st { int x; union { CUevent e; int y; } u; } Inner;
            typedef struct Outer_st { Inner inner[2]; } Outer;
            CUresult cuNewThing(const Outer *parameters);
            CUresult cuOtherThing(int x);\n"""
        self.assertEqual(unclassified(header, self.hooks, self.passed), ["cuNewThing"])

    def test_the_check_finds_a_row_that_was_taken_away(self):
        for symbol in ("cuMemFreeAsync_ptsz", "cuLaunchKernelEx", "cuMemcpyDtoH_v2",
                       "cuEventRecord", "cuCtxSynchronize"):
            fewer = {s: since for s, since in self.hooks.items() if s != symbol}
            self.assertEqual(unclassified(declarations(), fewer, self.passed), [symbol])


def memory_rows(text):
    """{symbol: class}"""
    rows = re.findall(r"^([A-Z]+)\((\w+)\)$", text, re.MULTILINE)
    assert len(rows) == len({symbol for _, symbol in rows}), "a function is classified twice"
    return {symbol: kind for kind, symbol in rows}


def takes_memory(header):
    return {symbol for symbol, parameters in functions_of(header).items()
            if TAKES.match(symbol) or HOLDS.search(parameters)}


class MemoryClassification(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        source = pathlib.Path(os.environ["SOURCE"])
        cls.rows = memory_rows((source / MEMORY).read_text())
        cls.treatments = dict(re.findall(r"^VITAMIN_HOOK\((\w+), \d+, (.+)\)$",
                                         (source / DEF).read_text(), re.MULTILINE))

    def wrong_treatments(self, rows):
        wrong = []
        for symbol, kind in rows.items():
            treatment = self.treatments.get(symbol, "")
            if kind in TREATMENTS:
                if not TREATMENTS[kind].search(treatment):
                    wrong.append(symbol)
            elif kind not in UNTREATED or any(expression.search(treatment)
                                              for expression in TREATMENTS.values()):
                wrong.append(symbol)
        return wrong

    def test_every_function_of_the_header_that_may_take_memory_is_classified(self):
        taking = takes_memory(declarations())
        self.assertGreater(len(taking), 150)
        self.assertEqual(sorted(taking - set(self.rows)), [])

    def test_every_row_names_a_function_of_some_header(self):
        # Of the newest: older headers have fewer.
        known = set(functions_of(declarations()))
        if "cuMemGetMemPool" not in known:
            self.skipTest("the header is older than the table")
        self.assertEqual(sorted(set(self.rows) - known), [])

    def test_what_is_charged_returned_or_bounded_has_that_treatment_and_nothing_else_has(self):
        self.assertEqual(self.wrong_treatments(self.rows), [])
        treated = {symbol for symbol, treatment in self.treatments.items()
                   if any(expression.search(treatment) for expression in TREATMENTS.values())}
        self.assertEqual(sorted(treated - set(self.rows)), [])

    def test_the_check_finds_a_new_function_that_takes_memory(self):
        for declaration in ("CUresult cuMemAllocSpecial(CUdeviceptr *p, size_t n);",
                            "CUresult cuNewThing(const CUmemAllocationProp *prop);",
                            "CUresult cuTextureCreate(int n);"):
            taking = takes_memory(declarations() + declaration + "\n")
            self.assertEqual(len(taking - set(self.rows)), 1, declaration)

    def test_the_check_finds_a_charged_function_without_its_treatment(self):
        for symbol in ("cuMemAlloc_v2", "cuMemFree_v2", "cuMemGetInfo_v2"):
            kept = self.treatments[symbol]
            self.treatments[symbol] = "Flushed"
            self.assertEqual(self.wrong_treatments(self.rows), [symbol])
            self.treatments[symbol] = kept
        self.assertEqual(self.wrong_treatments(self.rows | {"cuMemcpy": "CHARGED"}), ["cuMemcpy"])


class Library(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.library = os.environ["LIBRARY"]
        header = (pathlib.Path(os.environ["CUDA_INCLUDE"]) / "cuda.h").read_text()
        version = int(re.search(r"#define CUDA_VERSION (\d+)", header)[1])
        rows = (pathlib.Path(os.environ["SOURCE"]) / DEF).read_text()
        cls.hooks, _ = classified_of(rows, version)

    def run_tool(self, *words):
        return subprocess.run([*words, self.library], capture_output=True, text=True,
                              check=True).stdout

    def test_the_library_exports_its_hooks_dlsym_its_offer_of_advice_and_nothing_else(self):
        lines = self.run_tool("nm", "-D", "--defined-only").splitlines()
        exported = {line.split()[-1] for line in lines}
        self.assertEqual(exported, set(self.hooks) | {"dlsym", "vitamin_advice_cuda",
                                                      "InitializeInjectionNvtx2"})

    def test_exported_symbols_carry_no_version(self):
        self.assertNotIn(".gnu.version_d", self.run_tool("readelf", "-SW"))

    def test_the_library_needs_libc_and_the_loader_only(self):
        if os.environ["SANITIZED"] == "1":
            self.skipTest("a sanitizer's runtime is a shared library")
        needed = re.findall(r"NEEDED.*\[(.*?)\]", self.run_tool("readelf", "-dW"))
        # The two at the end are part of libc since glibc 2.34 (interpose/glibc_floor).
        self.assertLessEqual(set(needed), {"libc.so.6", "ld-linux-x86-64.so.2", "libm.so.6",
                                           "libdl.so.2", "libpthread.so.0"})


if __name__ == "__main__":
    unittest.main()
