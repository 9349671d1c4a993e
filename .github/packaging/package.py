# Spack. The version is that of project() in CMakeLists.txt; OWNER and the sum are those of the released archive.
from spack_repo.builtin.build_systems.cmake import CMakePackage, generator

from spack.package import *


class Ejk(CMakePackage):
    """Masks, segments, groups and reference results for attention and mixture-of-experts kernels."""

    homepage = "https://github.com/OWNER/ejk"
    url = "https://github.com/OWNER/ejk/archive/v0.1.0.tar.gz"

    license("Apache-2.0")

    version("0.1.0", sha256="0000000000000000000000000000000000000000000000000000000000000000")

    variant("mpi", default=False, description="Build ejk-mpi, for several processes and machines")
    variant("shared", default=False, description="Build libejk.so instead of libejk.a")

    generator("ninja")

    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("cli11@2.1:", type="build")
    depends_on("fmt@9:")
    depends_on("hdf5@1.10.5:+shared~mpi")  # loaded at run time by its SONAME
    depends_on("libpng@1.6:")
    depends_on("zlib-api")
    depends_on("mpi", when="+mpi")

    conflicts("%gcc@:11")

    def cmake_args(self):
        return [
            self.define("CMAKE_UNITY_BUILD", True),
            self.define("EJK_TESTS", False),
            self.define_from_variant("EJK_MPI", "mpi"),
            self.define_from_variant("BUILD_SHARED_LIBS", "shared"),
        ]
