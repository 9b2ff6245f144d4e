# LibTorch 2.11, CUDA 13 and NCCL 2.28.9 from the Python wheels. A folder as one `hdrs` entry keeps the sandbox
# cheap; RECORD, the wheel's list of files, is what changes with a new version.
package(default_visibility = ["//visibility:public"])

# The second root is where a GPU machine without this build's environment keeps the same wheels.
_ROOTS = ["{SITE}", "/opt/torch/.venv/lib/python3.12/site-packages"]

_RPATH = ["-Wl,-rpath,%s/%s" % (root, lib) for root in _ROOTS for lib in ["torch/lib", "nvidia/cu13/lib", "nvidia/nccl/lib"]]

cc_library(
    name = "headers",
    hdrs = ["RECORD", "include"],
    includes = ["include", "include/torch/csrc/api/include"],
)

cc_library(
    name = "cuda_headers",
    hdrs = ["nvidia/cu13/include", "nvidia/cudnn/include", "nvidia/nccl/include"],
    includes = ["nvidia/cu13/include", "nvidia/cu13/include/cccl", "nvidia/cudnn/include", "nvidia/nccl/include"],
)

# LibTorch chooses its kernels by the processor's instruction sets: an input of each test that links it.
cc_library(
    name = "cpu",
    data = ["@fsdpd//:hardware"],
    linkopts = _RPATH + ["-L{SITE}/torch/lib", "-ltorch_cpu", "-lc10"],
    deps = [":headers"],
)

cc_library(
    name = "cuda",
    linkopts = [
        "-Wl,--push-state,--no-as-needed", "-L{SITE}/torch/lib", "-ltorch_cuda", "-lc10_cuda", "-Wl,--pop-state",
        "-L{SITE}/nvidia/cu13/lib", "-l:libcudart.so.13", "-l:libcublasLt.so.13",
        "-L{SITE}/nvidia/nccl/lib", "-l:libnccl.so.2",
    ],
    deps = [":cpu", ":cuda_headers"],
)

filegroup(
    name = "google_rpc_protos",
    srcs = ["google_protos/google/rpc/error_details.proto", "google_protos/google/rpc/status.proto"],
)
