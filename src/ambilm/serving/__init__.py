"""One HTTP server for both directions, in the API that clients of OpenAI already speak: ``ambilm serve M``.

One process holds one copy of the weights. :mod:`~ambilm.serving.app` puts the parts together. Needs ``ambilm[serve]``.
"""
