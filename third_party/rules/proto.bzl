"""One cc_library per .proto file (two targets over one file would register its descriptor twice)."""

load(":precompiled.bzl", "cc_library")

# deploy/setup sets $(debian), so that another protoc is another action.
_PROTOC = "FSDPD_DEBIAN=$(debian) /usr/bin/protoc"
_GRPC = "--plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin --grpc_out=$(GENDIR)/proto"

def fsdpd_proto(name, deps = [], services = False):
    """`name`.proto -> `name` (messages) and, with services, the gRPC stubs in `name`_grpc.

    Protos are imported from proto/, so that stubs in other languages are packages below fsdpd and not below a directory of
    ours (Python's proto-plus is a package `proto`). Our includes are written from the repository's root, as all others
    are: fsdpd/v1/job.proto's messages are in proto/fsdpd/v1/job.pb.h. protoc's own headers include each other as protos
    import each other, which requires //proto:root.
    """
    src = name + ".proto"
    protos = [src] + [dep + "_src" for dep in deps]
    native.filegroup(name = name + "_src", srcs = protos)
    native.genrule(
        name = name + "_gen",
        srcs = protos,
        outs = [name + ".pb.h", name + ".pb.cc"],
        cmd = "%s -Iproto --cpp_out=$(GENDIR)/proto $(location %s)" % (_PROTOC, src),
    )
    cc_library(
        name = name,
        srcs = [name + ".pb.cc"],
        hdrs = [name + ".pb.h"],
        deps = deps + ["//proto:root", "//third_party:protobuf"],
    )
    if services:
        native.genrule(
            name = name + "_grpc_gen",
            srcs = protos,
            outs = [name + ".grpc.pb.h", name + ".grpc.pb.cc"],
            cmd = "%s -Iproto %s $(location %s)" % (_PROTOC, _GRPC, src),
        )
        cc_library(
            name = name + "_grpc",
            srcs = [name + ".grpc.pb.cc"],
            hdrs = [name + ".grpc.pb.h"],
            deps = [":" + name, "//third_party:grpc"],
        )

def google_rpc_library(name):
    """google/rpc/{status,error_details}.proto from the googleapis-common-protos wheel."""
    outs = ["google/rpc/%s.pb.%s" % (f, ext) for f in ["status", "error_details"] for ext in ["h", "cc"]]
    native.genrule(
        name = name + "_gen",
        srcs = ["@libtorch//:google_rpc_protos"],
        outs = outs,
        cmd = """
            out=$$(dirname $$(dirname $$(dirname $(location google/rpc/status.pb.h))))
            in=$$(echo $(locations @libtorch//:google_rpc_protos) | tr ' ' '\\n' | grep status.proto)
            in=$${in%%/google/rpc/status.proto}
            %s -I$$in --cpp_out=$$out google/rpc/status.proto google/rpc/error_details.proto
        """ % _PROTOC,
    )
    cc_library(
        name = name,
        srcs = [o for o in outs if o.endswith(".cc")],
        hdrs = [o for o in outs if o.endswith(".h")],
        includes = ["."],
        deps = [":protobuf"],
    )
