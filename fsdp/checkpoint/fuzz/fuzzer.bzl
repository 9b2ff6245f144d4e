"""Programs that libFuzzer drives: built with `--config=fuzz`, by clang, and run by `tests/run fuzz`."""

def fuzzer(name, deps):
    native.cc_binary(
        name = name,
        testonly = True,
        srcs = [name + ".cc", "fuzz.h"],
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["fuzz", "manual"],  # Other compilers know no such sanitizer.
        deps = deps + ["//base:check", "//base:text", "//fsdp/checkpoint:zip"],
    )
