"""What tests of the kernels share."""

from hypothesis import settings

# The first call of a kernel loads or compiles it.
settings.register_profile("kernels", deadline=None)
settings.load_profile("kernels")
