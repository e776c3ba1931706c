"""The builder takes memory until somebody stops it."""

import time

import fake_tensorrt
from fake_tensorrt import *  # noqa: F403
from fake_tensorrt import __version__  # noqa: F401


class Builder(fake_tensorrt.Builder):
    def build_serialized_network(self, network, config):
        taken = []
        while True:
            taken.append(bytearray(b"x") * (16 << 20))
            time.sleep(0.01)
