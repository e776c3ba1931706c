"""The builder ends the process as if all were well."""

import os

import fake_tensorrt
from fake_tensorrt import *  # noqa: F403
from fake_tensorrt import __version__  # noqa: F401


class Builder(fake_tensorrt.Builder):
    def build_serialized_network(self, network, config):
        os._exit(0)
