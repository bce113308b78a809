"""Other people's formats: a model directory that stock software loads, without AmbiLM. One file each."""

from ambilm.export.moe import export_moe
from ambilm.export.sentence_transformers import export_sentence_transformers
from ambilm.export.stock import export_hf, export_merged

__all__ = ["export_hf", "export_merged", "export_moe", "export_sentence_transformers"]
