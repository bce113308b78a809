"""The command line: ``ambilm COMMAND``, one file a command.

Results go to stdout or to ``--output``; everything else (notices, progress, errors) goes to stderr. torch and
transformers are imported inside the commands, so that ``ambilm --help`` answers at once.
"""

from ambilm.cli.app import app, main

__all__ = ["app", "main"]
