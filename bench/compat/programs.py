# SPDX-License-Identifier: Apache-2.0
"""The programs of the compatibility suite: how each is started, and what it needs."""

import dataclasses
import importlib.util
import pathlib
import sys

import harness

HERE = pathlib.Path(__file__).resolve().parent
SCRIPTS = HERE / "programs"
GRACE = 60  # seconds for a program that keeps to --limit itself


@dataclasses.dataclass(frozen=True)
class Program:
    name: str
    command: tuple
    modules: tuple = ()  # of Python, without which it is not run
    about: str = ""
    seconds: float = 120  # after which it is ended
    batches: bool = False  # understands --batches, --calibrate and --gate
    ignore: str = ""  # what differs between runs of it, as a regular expression: times
    supplied: str = ""  # the option that says where it is; not run without

    def missing(self):
        """Why it cannot run here, or an empty string."""
        if self.supplied and not self.command:
            return f"not supplied ({self.supplied})"
        for module in self.modules:
            if importlib.util.find_spec(module) is None:
                return f"no module {module}"
        if self.command and not self.modules and self.command[0] != sys.executable \
                and not pathlib.Path(self.command[0]).exists():
            return f"no program {pathlib.Path(self.command[0]).name} in this tree"
        return ""


def script(name, file, program, *modules, **more):
    return Program(name, (sys.executable, "-B", str(SCRIPTS / file), program), modules,
                   batches=True, **more)


def binary(name, program, *words, **more):
    return Program(name, (harness.program(program), *words), **more)


def engines():
    return [
        script("vLLM, eager", "vllm_programs.py", "eager", "vllm", "transformers", seconds=240,
               about="32 prompts x 64 tokens a batch, Llama of 8 layers"),
        script("vLLM, CUDA graphs", "vllm_programs.py", "graphs", "vllm", "transformers",
               seconds=400, about="the same, torch.compile and graphs as by default"),
        script("transformers generate", "transformers_programs.py", "generate", "torch",
               "transformers", about="greedy, 4 prompts x 24 tokens"),
        script("transformers continuous batching", "transformers_programs.py",
               "continuous-batching", "torch", "transformers",
               about="16 prompts x 24 tokens, generate_batch"),
    ]


def frameworks():
    torch = lambda name, program, about, **more: script(
        name, "torch_programs.py", program, "torch", about=about, **more)
    return [
        torch("PyTorch eager training", "eager-training", "AdamW, transformer of 8 layers"),
        torch("torch.compile", "compiled-training", "the same, compiled as by default",
              seconds=240),
        torch("torch.compile max-autotune", "max-autotune",
              "products of integer values: kernels are chosen by time", seconds=240),
        torch("PyTorch cudagraph trees", "cudagraph-trees", "mode=reduce-overhead, two shapes",
              seconds=240),
        torch("torch.cuda.CUDAGraph", "graphs-by-hand", "one replayed, one launched once a batch"),
        torch("DDP, one rank", "ddp", "NCCL"),
        torch("FSDP2, one rank", "fsdp2", "fully_shard of each layer"),
        torch("NCCL, one GPU", "nccl-all-reduce", "all-reduce, broadcast, all-gather"),
        torch("cuFFT, cuSOLVER, cuSPARSE by PyTorch", "libraries",
              "rfft, QR, Cholesky, solve, eigenvalues, CSR product"),
        script("Triton autotuning", "triton_programs.py", "autotuned", "torch", "triton",
               about="4 configurations, integer values"),
        script("JAX training", "jax_programs.py", "training", "jax", about="jit, SGD"),
        script("CuPy", "cupy_programs.py", "kernels", "cupy", about="raw and own kernels, cuBLAS"),
        script("CuPy graphs", "cupy_programs.py", "graphs", "cupy",
               about="one launched often, one captured and launched once a batch"),
        script("cuFFT, cuSOLVER, cuSPARSE by CuPy", "cupy_programs.py", "libraries", "cupy"),
        script("ONNX Runtime", "onnx_programs.py", "inference", "onnx", "onnxruntime",
               about="CUDA provider"),
    ]


def binaries():
    """Of bench/programs, as bench/bits.py runs them."""
    made = [binary(name, program) for name, program in (
        ("cuBLAS", "use_cublas"), ("cuBLASLt", "use_cublaslt"), ("cuDNN", "use_cudnn"),
        ("cuFFT", "use_cufft"), ("NVRTC", "use_nvrtc"), ("shared runtime", "use_runtime_shared"),
        ("static runtime", "use_runtime_static"),
        ("per-thread default stream", "use_runtime_per_thread"))]
    return [*made, Program("Triton", (sys.executable, "-B", str(HERE.parent / "use_triton.py")),
                           ("torch", "triton"))]


def none_supplied(options):
    """Sets what `supplied` reads, where only programs of ours are run."""
    options.only, options.llama_cpp, options.llama_model = None, None, None
    options.cuda_samples, options.pytorch_source, options.limit = None, None, 0
    options.samples_at_once = 1


def supplied(options):
    """What others wrote and is not kept here: run where the user says where it is."""
    outcomes = lambda *words: (sys.executable, "-B", str(SCRIPTS / "outcomes.py"), *map(str, words))
    # They end what takes too long themselves, and tell what ended before.
    within = lambda seconds: ("--within", min(seconds, options.limit or seconds))
    llama = samples = ()
    if options.llama_cpp and options.llama_model:
        llama = outcomes("text", pathlib.Path(options.llama_cpp) / "bin" / "llama-simple", "-m",
                         options.llama_model, "-n", "64", "-ngl", "99", "Once upon a time")
    if options.cuda_samples:
        samples = outcomes("executables", options.cuda_samples, *within(3500), "--at-once",
                           options.samples_at_once)
    tests = lambda file: outcomes("pytest", pathlib.Path(options.pytorch_source) / "test" / file,
                                  *within(1500)) if options.pytorch_source else ()
    return [
        Program("llama.cpp", llama, supplied="--llama-cpp DIR --llama-model FILE",
                about="llama-simple, 64 tokens, greedy"),
        Program("cuda-samples", samples, supplied="--cuda-samples DIR", seconds=3600,
                about="every program that was built, by its exit code"),
        *[Program(f"PyTorch's {file}", tests(file), ("pytest",), seconds=1600,
                  supplied="--pytorch-source DIR", about="the outcome of each test")
          for file in ("test_cuda.py", "inductor/test_cudagraph_trees.py")],
    ]


def smoke():
    """Programs that need neither nvcc's compiler nor a GPU."""
    demo = str(harness.prefix() / "bin" / "demo-train")
    return [
        Program("demo training", (demo, "20"), ignore=r"[0-9.]+ seconds"),
        binary("cooperative kernels", "hazards", "cooperative"),
        binary("clusters of 8", "hazards", "clusters_8"),
        Program("chains of kernels", (sys.executable, "-B", str(SCRIPTS / "chain_batches.py"),
                                      harness.program("occupy"), "chains"), batches=True),
        Program("a missing module", (sys.executable, "-c", "import vitamin_no_such_module"),
                ("vitamin_no_such_module",)),
    ]


def chosen(options):
    """The programs that the options name, in order."""
    others = supplied(options)
    listed = smoke() if options.smoke else [*engines(), *frameworks(), *binaries(), *others]
    if options.limit:
        listed = [dataclasses.replace(p, seconds=min(
            p.seconds, options.limit + (GRACE if p in others else 0))) for p in listed]
    words = [w.strip().lower() for w in (options.only or "").split(",") if w.strip()]
    # An exact name is that program alone.
    exact = [p for p in listed if p.name.lower() in words]
    return [p for p in listed if not words or p in exact or any(
        w in p.name.lower() for w in words if w not in [e.name.lower() for e in exact])]
