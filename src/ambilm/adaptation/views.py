"""Two module trees over one set of weights.

An adapter that is switched on and off on a shared module, or a config flag that is flipped for the length of a call, can
turn a causal call in another thread bidirectional. AmbiLM never switches. The base model stays exactly as transformers
built it; a second tree of modules, sharing every weight tensor with the first, carries the adapter and attends by layout.
The cost is the Python objects, not the weights, and causal generation is bit-identical to the base by construction.
"""

from __future__ import annotations

import copy
from itertools import chain

from transformers import PreTrainedModel

from ambilm.attention.kernels import ATTENTION_NAME, register_attention


def shared_view(base: PreTrainedModel) -> PreTrainedModel:
    """A copy of the modules and the config of ``base`` that shares all its parameters and buffers.

    The copy attends by layout: each forward call needs the keyword ``layout`` (see :mod:`ambilm.attention`).
    """
    register_attention()
    shared = {id(tensor): tensor for tensor in chain(base.parameters(), base.buffers())}
    view: PreTrainedModel = copy.deepcopy(base, shared)
    for module in view.modules():
        config = getattr(module, "config", None)
        if config is not None:
            config._attn_implementation = ATTENTION_NAME
    return view
