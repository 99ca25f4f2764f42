"""Where the packages are: `stepscope.runtime` is the folder `runtime`, and so on. The rest stands in pyproject.toml."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

NO_COMPILER = (
    "stepscope's native core needs a C compiler, and {compiler} does not run. "
    "Debian, Ubuntu: apt-get install build-essential python3-dev. Fedora: dnf install gcc python3-devel. "
    "Then install stepscope again; a wheel needs no compiler."
)


class BuildCore(build_ext):
    """Builds the native core, or says in a sentence what is missing."""

    def build_extensions(self) -> None:
        """
        Raises:
            SystemExit: if there is no C compiler.
        """
        compiler: list[str] = getattr(self.compiler, "compiler_so", ["cc"])
        try:
            subprocess.run([compiler[0], "--version"], capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            sys.exit(NO_COMPILER.format(compiler=compiler[0]))
        super().build_extensions()


def folders() -> dict[str, str]:
    """Each package and its folder."""
    with open("pyproject.toml", "rb") as file:
        parts: list[str] = tomllib.load(file)["tool"]["stepscope"]["parts"]
    own = ["stepscope", *(f"stepscope.{name}" for name in find_packages("stepscope"))]
    found = {name: name.replace(".", "/") for name in own}
    for part in parts:
        for name in (part, *(f"{part}.{inner}" for inner in find_packages(part))):
            found[f"stepscope.{name}"] = name.replace(".", "/")
    return found


# Relative to this file, as setuptools wants them.
os.chdir(Path(__file__).parent)
sources = Path("runtime/core")
debug = bool(os.environ.get("STEPSCOPE_DEBUG_BUILD"))
setup(
    packages=list(folders()),
    package_dir=folders(),
    cmdclass={"build_ext": BuildCore},
    ext_modules=[
        Extension(
            "stepscope.runtime._core",
            sources=[str(path) for path in sorted(sources.rglob("*.c"))],
            depends=[str(path) for path in sorted(sources.rglob("*.h"))],
            include_dirs=[str(sources)],
            extra_compile_args=[
                "-std=c11",
                "-D_GNU_SOURCE",
                "-O3",
                "-fvisibility=hidden",
                "-Wall",
                "-Wextra",
                "-Wno-unused-parameter",
                "-Wno-missing-field-initializers",
                "-Wno-cast-function-type",
            ],  # fmt: skip
            extra_link_args=["-pthread", "-lrt", *([] if debug else ["-Wl,-s"])],
        )
    ],
)
