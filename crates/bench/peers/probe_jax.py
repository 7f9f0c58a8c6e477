import jax, numpy

print(jax.__version__)
