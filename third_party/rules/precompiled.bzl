"""C++ rules that choose a precompiled header (third_party/precompiled*.h).

The default, which BAZEL_CXXOPTS names, is that of tests. Clang reads a precompiled header's index in each compile, so
a smaller one is a faster compile: an empty source takes 0.08 s without LibTorch and GoogleTest, 0.11 s with GoogleTest,
0.28 s with both. The wrong one costs time only, since every source includes what it uses. With --config=bare there are
none.
"""

load("@libtorch//:paths.bzl", "HEADERS")

def _precompiled(name):
    # Of several -include-pch clang reads the last.
    return ["-include-pch", "%s/%s.pch" % (HEADERS, name)] if HEADERS else []

# Packages most of whose sources and tests include LibTorch. They load the rules below in place of the native ones.
_LIBTORCH_PACKAGES = [
    "fsdp",
    "fsdp/comm",
    "fsdp/comm/testing",
    "fsdp/engine",
    "fsdp/engine/testing",
    "fsdp/kernels",
    "fsdp/lane",
    "fsdp/lane/testing",
    "fsdp/memory",
    "fsdp/memory/testing",
    "fsdp/model",
    "fsdp/model/autograd",
    "fsdp/model/native",
    "fsdp/model/testing",
    "fsdp/model/unit",
    "fsdp/optimizer",
    "fsdp/optimizer/testing",
    "fsdp/profile",
    "fsdp/telemetry/testing",
    "fsdp/torch",
]

def _copts(test):
    if native.package_name() in _LIBTORCH_PACKAGES:
        return _precompiled("precompiled_libtorch")
    return _precompiled("precompiled_tests" if test else "precompiled")

# testonly None: the default of the package.
def cc_library(copts = [], testonly = None, **kwargs):
    native.cc_library(copts = _copts(testonly) + copts, testonly = testonly, **kwargs)

def cc_binary(copts = [], testonly = None, **kwargs):
    native.cc_binary(copts = _copts(testonly) + copts, testonly = testonly, **kwargs)

def cc_test(copts = [], **kwargs):
    native.cc_test(copts = _copts(True) + copts, **kwargs)
