"""make_model.py FILE - a small model for client/examples/python/gpu.py, which the CPU writes."""

import sys

import numpy as np

from gaiafs import safetensors

numbers = np.random.default_rng(1)
safetensors.save_file(
    {"w": numbers.standard_normal((1000, 1500), "f4"), "h": numbers.standard_normal(5000, "f4").astype("f2"), "i": np.arange(1000)},
    sys.argv[1],
)
