"""conf/ stands at the top level and is the package triptych.conf: an installed triptych works outside the checkout."""

from setuptools import find_namespace_packages, setup

packages = find_namespace_packages("src", include=["triptych*", "hydra_plugins*"])
configuration = find_namespace_packages(".", include=["conf*"])
setup(packages=[*packages, *(f"triptych.{name}" for name in configuration)])
