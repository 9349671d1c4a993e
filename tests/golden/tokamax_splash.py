# The modules of masks and of their metadata of an unpacked wheel of tokamax, without its packages, which import what a CPU
# does not have: for the scripts beside this. They need jax alone.
import importlib
import sys
import types

PACKAGE = "tokamax._src.ops.experimental.tpu.splash_attention"


def mask_modules(folder):
    for n in range(len(PACKAGE.split("."))):  # packages without their __init__
        name = ".".join(PACKAGE.split(".")[: n + 1])
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [folder + "/" + name.replace(".", "/")]
    return [importlib.import_module(f"{PACKAGE}.splash_attention_{name}") for name in ("mask", "mask_info")]
