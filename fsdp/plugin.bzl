"""Rule for a user model in a shared object that fsdpd-rank loads (fsdp/model/plugin_entry.h)."""

def fsdpd_plugin(name, srcs, deps = [], **kwargs):
    """NAME.so from `srcs`, which end with FSDPD_PLUGIN. It exports that one symbol: the rest is its own copy."""
    native.cc_binary(
        name = name + ".so",
        srcs = srcs,
        additional_linker_inputs = ["//fsdp:plugin.lds"],
        linkopts = ["-Wl,--version-script=$(location //fsdp:plugin.lds)", "-Wl,--gc-sections"],
        linkshared = True,
        deps = ["//fsdp:plugin"] + deps,
        **kwargs
    )
