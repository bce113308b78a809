"""Who may see whom: one definition of the attention layouts, compiled to what each attention kernel takes."""

from ambilm.attention.kernels import KERNELS, attend, register_attention
from ambilm.attention.layout import Layout, Tokens

__all__ = ["KERNELS", "Layout", "Tokens", "attend", "register_attention"]
