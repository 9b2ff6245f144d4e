"""Compiles a .cu file with nvcc from the Python wheels; no GPU and no CUDA installation needed."""

load("@libtorch//:paths.bzl", "NVCC")

# Spelt out: `-arch=sm_90a` also builds plain compute_90 PTX, in which Hopper's own instructions fail.
_ARCH = "-gencode arch=compute_90a,code=sm_90a"

def cuda_library(name, src, hdrs, deps = [], **kwargs):
    """`src` (a .cu without LibTorch headers) and its plain C++ launcher header."""
    native.genrule(
        name = name + "_object",
        srcs = [src] + hdrs,
        outs = [name + ".cu.pic.o"],
        cmd = NVCC + " -std=c++17 -O3 " + _ARCH + " -I. -ccbin /usr/bin/g++ -Xcompiler -fPIC -c $(location %s) -o $@" % src,
    )
    native.cc_library(
        name = name,
        srcs = [name + ".cu.pic.o"],
        hdrs = hdrs,
        deps = deps,
        **kwargs
    )
