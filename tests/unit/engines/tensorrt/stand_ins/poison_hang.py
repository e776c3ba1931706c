"""The builder never returns, and has a child that ignores SIGTERM."""

import signal
import subprocess
import sys
import time

import fake_tensorrt
from fake_tensorrt import *  # noqa: F403
from fake_tensorrt import __version__  # noqa: F401


class Builder(fake_tensorrt.Builder):
    def build_serialized_network(self, network, config):
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"
        subprocess.Popen([sys.executable, "-c", code])
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(3600)
