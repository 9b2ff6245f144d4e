"""Rule that compiles .cu files with nvcc from the Python wheels; needs neither a GPU nor a CUDA installation."""

load("@libtorch//:paths.bzl", "NVCC")

# Ampere, Hopper, and PTX that the driver compiles for later architectures.
_ARCH = " ".join([
    "-gencode arch=compute_80,code=sm_80",
    "-gencode arch=compute_90,code=sm_90",
    "-gencode arch=compute_90,code=compute_90",
])

def cuda_library(name, device_hdrs = [], none = [], deps = [], nvcc_options = [], **kwargs):
    """A launcher `name`.h and its device code `name`.cu; a build without CUDA takes `none` in its place.

    Args:
      name: of the target and both files.
      device_hdrs: further headers that the .cu includes; nvcc does not see `deps`.
      none: dependencies that define the launchers without CUDA.
      deps: of the launcher's header.
      nvcc_options: for the device code, in addition to those of all.
      **kwargs: of the cc_library.
    """
    # nvcc names its files after its process, and every sandbox's has the same number.
    own_folder = "export TMPDIR=$$(mktemp -d) && trap 'rm -r $$TMPDIR' EXIT && "
    native.genrule(
        name = name + "_object",
        srcs = [name + ".cu", name + ".h"] + device_hdrs,
        outs = [name + ".cu.pic.o"],
        cmd = own_folder + "FSDPD_DEBIAN=$(debian) " + NVCC + " -std=c++17 -O3 " + _ARCH +
              " -I. -ccbin /usr/bin/g++ -Xcompiler -fPIC,-Wall" + "".join([" " + option for option in nvcc_options]) +
              " -c $(location %s.cu) -o $@" % name,
    )
    cuda = "//third_party:cuda_device"
    native.cc_library(
        name = name,
        srcs = select({cuda: [name + ".cu.pic.o"], "//conditions:default": []}),
        hdrs = [name + ".h"],
        deps = deps + select({cuda: ["@libtorch//:cuda"], "//conditions:default": none}),
        **kwargs
    )
