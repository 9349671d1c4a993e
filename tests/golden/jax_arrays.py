# Arrays of JAX and NumPy as datasets, for the scripts beside this; bfloat16 as its bits.
import jax.numpy as jnp
import numpy as np


def put(group, name, array):
    array = np.asarray(array)
    if array.dtype == jnp.bfloat16:
        group.create_dataset(name, data=array.view(np.uint16)).attrs["dtype"] = "bfloat16"
    else:
        group.create_dataset(name, data=array)
