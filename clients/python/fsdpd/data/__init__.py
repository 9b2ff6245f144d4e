"""Token files: made from text (`tokenize`), looked into (`inspect`), merged and shuffled (`pack`). The program is
`fsdpctl data`, which is fsdpctl-data on PATH, or `python -m fsdpd.data`; docs/data.md shows it.

Nothing is imported here: `import fsdpd` goes without the libraries of the extra `fsdpd[data]`.
"""
