"""Compiles graphs to shared objects with AOTInductor, several at a time in processes of their own."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import multiprocessing
import os
import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx._graph_pickler import GraphPickler, Options

from fsdpd.faults import Fault
from fsdpd.model.partition import Call

TORCH = "2.11"  # Ranks have this version of LibTorch, and load only libraries of it.
CPU_TARGET = "x86-64-v3"
# LibTorch exports symbols of the C++ library that a shared object must not bind to. A build id depends on paths.
LINK = ["Wl,-Bsymbolic", "Wl,-s", "Wl,--build-id=none"]


def check_version() -> None:
    if not torch.__version__.startswith(f"{TORCH}."):
        raise Fault(f"PyTorch {torch.__version__}: packages need PyTorch {TORCH}, like ranks; install torch=={TORCH}.*")


def target_of(device: torch.device) -> str:
    if device.type == "cpu":
        return CPU_TARGET
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


@dataclasses.dataclass
class Work:
    """A call to compile, in a form that another process can read."""

    name: str
    graph: bytes
    examples: list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]
    device: str
    library: pathlib.Path


def work_of(name: str, call: Call, device: torch.device, library: pathlib.Path) -> Work:
    plain = fx.Graph()
    plain.output(plain.graph_copy(call.graph.graph, {}))
    for node in plain.nodes:
        node.meta = {}
    # Unlike torch.save, which traces again and thereby makes constants of calls without tensors, such as full and arange.
    graph = GraphPickler.dumps(fx.GraphModule(torch.nn.Module(), plain), Options(ops_filter=None))
    examples = [(tuple(each.shape), tuple(each.stride()), each.dtype) for each in call.examples()]
    return Work(name, graph, examples, str(device), library)


def compile_all(works: list[Work], jobs: int, done: Callable[[int], None]) -> None:
    if jobs == 1 or len(works) == 1:
        for index, work in enumerate(works):
            compile_one(work)
            done(index + 1)
        return
    # Semaphores of terminated processes are removed with a warning, which would be the last line after an error.
    os.environ.setdefault("PYTHONWARNINGS", "ignore::UserWarning:multiprocessing.resource_tracker")
    with concurrent.futures.ProcessPoolExecutor(min(jobs, len(works)), multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(compile_one, work) for work in works]
        try:
            for index, future in enumerate(concurrent.futures.as_completed(futures)):
                future.result()
                done(index + 1)
        except concurrent.futures.BrokenExecutor:
            raise Fault("--jobs: a process that compiles was killed, probably for memory; set a lower number") from None
        except BaseException:
            # The other libraries are not used.
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def compile_one(work: Work) -> None:
    torch.set_num_threads(1)
    use_common_flags()
    graph = GraphPickler.loads(work.graph, FakeTensorMode())
    examples = tuple(torch.empty_strided(shape, stride, dtype=dtype, device=work.device).zero_()
                     for shape, stride, dtype in work.examples)
    work.library.parent.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {
        "aot_inductor.package": False,
        "aot_inductor.embed_kernel_binary": True,
        "aot_inductor.output_path": str(work.library),
        "cpp.simdlen": 256,
        "cpp.dynamic_threads": True,
        "compile_threads": 1,
        "cpp.vec_isa_ok": True,  # Otherwise each process compiles a test of AVX2, one after the other.
    }
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch._inductor.aot_compile(graph, examples, options=options)
        except Exception as error:
            raise Fault(f"{work.name}: AOTInductor cannot compile this graph: {error}") from error
    library = work.library.read_bytes()
    if b"libstdc++.so" not in library:
        raise Fault("the C++ compiler links libstdc++ statically, which cannot be loaded next to PyTorch's; set CXX to another "
                    "g++, such as /usr/bin/g++")
    work.library.write_bytes(without_paths(library, work.library.parent))


def use_common_flags() -> None:
    """Replaces -march=native, for which AOTInductor has no option, and adds flags of the linker."""
    from torch._inductor import cpp_builder

    optimization, shared = cpp_builder._get_optimization_cflags, cpp_builder._get_shared_cflags
    related = cpp_builder._get_torch_related_args
    if optimization.__module__ == __name__:
        return  # Replaced already.

    def portable(*args: Any, **kwargs: Any) -> tuple[list[str], list[str]]:
        compiler, linker = optimization(*args, **kwargs)
        return [f"march={CPU_TARGET}" if each == "march=native" else each for each in compiler], linker

    def linked(do_link: bool) -> list[str]:
        return [*shared(do_link), *(LINK if do_link else [])]

    def without_stub(*args: Any, **kwargs: Any) -> tuple[list[str], list[str], list[str]]:
        headers, directories, libraries = related(*args, **kwargs)
        return headers, directories, [each for each in libraries if each != "torch"]  # Empty, and ranks do not load it.

    cpp_builder._get_optimization_cflags, cpp_builder._get_shared_cflags = portable, linked
    cpp_builder._get_torch_related_args = without_stub


def without_paths(library: bytes, directory: pathlib.Path) -> bytes:
    """Error messages contain paths of the build. Same-length replacements keep the offsets in the file."""
    torch_directory = pathlib.Path(torch.__file__).parent
    for path in (directory, torch_directory, torch_directory.resolve()):
        text = f"{path}/".encode()
        library = library.replace(text, b"/" * len(text))
    return library
