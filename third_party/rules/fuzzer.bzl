"""Programs that libFuzzer drives: built with `--config=fuzz`, by clang, and run by `tests/run corpora` and `fuzz`."""

def fuzzer(name, srcs, deps, tags = []):
    """Fuzz target. Earlier findings are in //tests/fuzzers/corpora/`name`; with the tag `nightly`, only `fuzz` runs it."""
    native.cc_binary(
        name = name,
        testonly = True,
        srcs = srcs,
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["fuzz", "manual"] + tags,  # Other compilers know no such sanitizer.
        deps = deps,
    )
