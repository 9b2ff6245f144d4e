"""A pytest file as a Bazel test. Bazel reruns it only when one of its declared inputs changes."""

def pytest_test(name, data = [], shards = None, size = "large"):
    """The test `name` runs `name`.py, which sees only its declared inputs (//tests:run_file.sh).

    Args:
      name: of the target and the file.
      data: the programs that the file starts and the files that it reads, in addition to the modules of its directory.
      shards: the number of shards of a long file.
      size: Bazel's test size, which sets the time limit (.bazelrc).
    """
    native.sh_test(
        name = name,
        size = size,
        srcs = ["//tests:run_file.sh"],
        args = ["%s/%s.py" % (native.package_name(), name)],
        data = data + [name + ".py", ":modules", "//:machine.txt", "//tests:modules"],
        shard_count = shards,
        # These tests need root, network namespaces and ports. `local`, `external` or `no-cache` would discard results.
        # On Ctrl-C they get SIGTERM and time to stop their processes (.bazelrc); without the tag Bazel kills them.
        tags = ["no-sandbox", "supports-graceful-termination"],
    )
