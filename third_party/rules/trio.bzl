"""One concept is one x.h, x.cc, x_test.cc and one target named after it."""

load(":precompiled.bzl", "cc_library", "cc_test")

def trio(name, deps = [], test_deps = [], test_size = "small", tags = [], **kwargs):
    """cc_library `name` from name.h and name.cc, and cc_test `name`_test where name_test.cc exists."""
    cc_library(
        name = name,
        hdrs = native.glob([name + ".h"]),
        srcs = native.glob([name + ".cc"]),
        deps = deps,
        **kwargs
    )
    for test in native.glob([name + "_test.cc"]):
        cc_test(
            name = name + "_test",
            srcs = [test],
            size = test_size,
            tags = tags,
            deps = [":" + name, "//third_party:gtest"] + deps + test_deps,
        )
