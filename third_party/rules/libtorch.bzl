"""Finds LibTorch, CUDA, NCCL and the precompiled headers: `deploy/setup` made them and names their directories."""

def _site_packages(ctx):
    site = ctx.os.environ.get("FSDPD_SITE_PACKAGES", "")
    if site and ctx.path(site).get_child("torch").exists:
        return ctx.path(site)
    fail("LibTorch not found (FSDPD_SITE_PACKAGES is '%s'): run deploy/setup once in this clone" % site)

def _libtorch_impl(ctx):
    site = _site_packages(ctx)
    for entry in site.get_child("torch").get_child("include").readdir():
        # The wheel's protobuf 3.13 headers would hide the system's 3.21.
        if entry.basename != "google":
            ctx.symlink(entry, "include/" + entry.basename)
    ctx.symlink(site.get_child("nvidia"), "nvidia")
    ctx.symlink(site.get_child("google"), "google_protos/google")
    for entry in site.readdir():
        if entry.basename.startswith("torch-") and entry.basename.endswith(".dist-info"):
            ctx.symlink(entry.get_child("RECORD"), "RECORD")
    ctx.template("BUILD", Label("//third_party:libtorch.BUILD.tpl"), {"{SITE}": str(site)}, executable = False)
    headers = ctx.os.environ.get("FSDPD_HEADERS", "")
    ctx.file("paths.bzl", "NVCC = \"%s/nvidia/cu13/bin/nvcc\"\nSITE = \"%s\"\nHEADERS = \"%s\"\n" % (site, site, headers))

libtorch_repository = repository_rule(
    implementation = _libtorch_impl,
    environ = ["FSDPD_HEADERS", "FSDPD_SITE_PACKAGES"],
    local = True,
)
