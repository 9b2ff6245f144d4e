"""Exporter of PyTorch models: `fsdpctl model export` writes a package that ranks without Python train.

The program is `fsdpctl model`, which runs fsdpctl-model from PATH, or `python -m fsdpd.model`. This package imports
nothing, so that `import fsdpd` does not need the libraries of the extra `fsdpd[model]`.
"""
