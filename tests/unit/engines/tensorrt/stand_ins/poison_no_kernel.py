"""The builder returns None and logs why."""

import fake_tensorrt
from fake_tensorrt import *  # noqa: F403
from fake_tensorrt import __version__  # noqa: F401


class Builder(fake_tensorrt.Builder):
    def build_serialized_network(self, network, config):
        self.logger.log(
            fake_tensorrt.ILogger.Severity.ERROR, "Error Code 10: Could not find any implementation for node Conv_7"
        )
        return
