"""Programs that libFuzzer drives: built with `--config=fuzz`, by clang, and run by `tests/run fuzz`."""

def fuzzer(name, srcs, deps):
    native.cc_binary(
        name = name,
        testonly = True,
        srcs = srcs,
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["fuzz", "manual"],  # Other compilers know no such sanitizer.
        deps = deps + ["//base:check", "//fsdp/checkpoint:pickle", "//fsdp/checkpoint:zip"],
    )
