# The module block_sparsity of an unpacked wheel of flash-attn-4, run without CUTLASS: for the scripts beside this.
import sys
import types


def block_sparsity(folder):
    for name in ("cutlass", "cutlass.cute", "flash_attn", "flash_attn.cute", "flash_attn.cute.cute_dsl_utils"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["cutlass"].cute = sys.modules["cutlass.cute"]
    sys.modules["cutlass.cute"].Tensor = object
    sys.modules["flash_attn.cute.cute_dsl_utils"].get_broadcast_dims = None
    sys.modules["flash_attn.cute.cute_dsl_utils"].to_cute_tensor = None
    module = types.ModuleType("block_sparsity")
    with open(f"{folder}/flash_attn/cute/block_sparsity.py") as file:
        exec(file.read(), module.__dict__)
    return module
