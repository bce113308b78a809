"""Figures of Li et al. (ICML 2025), to stand beside one's own."""

from __future__ import annotations

MODULES = ("base", "ffn", "att", "emb", "ffn+att", "ffn+emb", "att+emb", "all")

# Spearman × 100, mean over BIOSSES, SICK-R, STS12-17, STS22 and STS-B; in the order of MODULES.
STS = {
    "Qwen1.5-0.5B-Chat": (34.96, 66.96, 68.29, 37.52, 66.63, 68.38, 68.15, 66.93),
    "Qwen1.5-1.8B-Chat": (55.55, 70.11, 69.04, 62.87, 69.75, 70.37, 68.80, 69.93),
    "Qwen1.5-4B-Chat": (35.30, 70.48, 71.40, 22.43, 71.32, 53.16, 52.35, 53.31),
    "Qwen1.5-7B-Chat": (32.03, 71.35, 72.57, 33.71, 72.23, 52.28, 51.70, 51.23),
}

# DP_after in percent, texts of 0-256, 256-512, 512-1024 and 1024-2048 tokens.
DEPENDENCE_AFTER = {
    "Qwen1.5-0.5B-Chat, ffn": (34.40, 39.55, 43.05, 48.52),
    "Qwen1.5-0.5B-Chat, att": (36.39, 40.74, 44.12, 49.48),
    "Qwen1.5-7B-Chat, ffn": (26.32, 28.97, 30.25, 34.15),
    "Qwen1.5-7B-Chat, att": (30.63, 32.56, 34.04, 38.29),
}

# MMLU, Winogrande and TruthfulQA mc2, in percent: of the base, and under the learned gates.
KNOWLEDGE = {
    "Qwen1.5-0.5B-Chat": ((32.5, 53.0, 43.0), (28.1, 54.0, 43.9)),
    "Qwen1.5-1.8B-Chat": ((44.3, 59.7, 40.5), (45.2, 58.5, 40.9)),
    "Qwen1.5-4B-Chat": ((54.2, 66.0, 44.5), (51.9, 64.7, 47.6)),
    "Qwen1.5-7B-Chat": ((60.2, 67.4, 53.7), (59.6, 66.0, 55.4)),
}

GFLOPS = {"Qwen2.5-7B": (7239.97, 7240.18)}  # of the base, and with gates and two experts
