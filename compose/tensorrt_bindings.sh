#!/bin/sh
# Installs TensorRT's Python bindings for the library that is in this image, and no second library beside it.
#
#   sh tensorrt_bindings.sh PYTHON
set -eu
python=$1
for library in /usr/lib/*/libnvinfer.so.*.*.* /usr/local/lib/libnvinfer.so.*.*.* /opt/tensorrt/lib/libnvinfer.so.*.*.*; do
  [ -e "$library" ] && break
done
if [ ! -e "$library" ]; then
  echo "no libnvinfer in this image: it cannot build TensorRT engines" >&2
  exit 1
fi
version=${library##*libnvinfer.so.}
cuda=${CUDA_VERSION%%.*}
# The package of bindings alone. Its versions have a fourth number, hence the "==10.7.0.*".
for package in "tensorrt-cu${cuda}-bindings" tensorrt-bindings; do
  if "$python" -m pip install --quiet --no-deps "$package==$version.*"; then
    found=$("$python" -c 'import tensorrt; print(tensorrt.__version__)')
    case $found in
      "$version"*) echo "TensorRT $found"; exit 0 ;;
    esac
    echo "the bindings say $found, the image's library is $version" >&2
    exit 1
  fi
done
echo "no bindings of TensorRT $version for this Python on the package index" >&2
exit 1
