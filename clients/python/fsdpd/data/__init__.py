"""Tools for token files: `tokenize` (text to tokens), `inspect`, and `pack` (merge and shuffle).

The program is `fsdpctl data`, which runs fsdpctl-data from PATH, or `python -m fsdpd.data`; see docs/data.md. This
package imports nothing, so that `import fsdpd` does not need the libraries of the extra `fsdpd[data]`.
"""
