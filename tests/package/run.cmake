# The library as others use it. TEST says how, BUILD is a build of ejk, WORK a folder for the test:
#
#   static        BUILD is installed; the project beside this file finds it, is built, and runs
#   shared        the same with libejk.so, linked from BUILD's objects, so that nothing compiles twice
#   subdirectory  a project that has ejk's sources inside is configured, and compiles its own
#   deb           a Debian package is made and unpacked; the program runs, and pkg-config knows the library
#
#   cmake -D TEST=... -D BUILD=... -D WORK=... -D CPACK=... [-D EMULATOR=...] -P run.cmake
#
# EMULATOR runs what BUILD's compiler compiles for another processor.
cmake_minimum_required(VERSION 3.25)
get_filename_component(root ${CMAKE_CURRENT_LIST_DIR}/../.. ABSOLUTE)
set(prefix ${WORK}/prefix)

# Generator, compiler and flags of BUILD, as options of cmake.
set(cached "TOOLCHAIN_FILE|GENERATOR|MAKE_PROGRAM|BUILD_TYPE|CXX_COMPILER|CXX_COMPILER_LAUNCHER|CXX_FLAGS|CXX_FLAGS_[A-Z]+")
file(STRINGS ${BUILD}/CMakeCache.txt options REGEX "^(CMAKE_(${cached})|EJK_WERROR):")
list(TRANSFORM options PREPEND -D)
file(STRINGS ${BUILD}/CMakeCache.txt sanitize REGEX "^EJK_SANITIZE:")
if(sanitize MATCHES "=(.+)")
  list(APPEND options -DCMAKE_CXX_FLAGS=-fsanitize=${CMAKE_MATCH_1})
endif()

function(run)
  execute_process(COMMAND ${ARGV} WORKING_DIRECTORY ${WORK} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(configure source build)  # more options
  run(${CMAKE_COMMAND} --no-warn-unused-cli -S ${source} -B ${build} ${options} ${ARGN})
endfunction()

function(require_program folder)
  run(${EMULATOR} ${folder}/bin/ejk mask --mask causal --shape 3x3)
  foreach(file bash-completion/completions/ejk zsh/site-functions/_ejk fish/vendor_completions.d/ejk.fish
               man/man1/ejk.1 man/man1/ejk-mask-info.1 doc/ejk/LICENSE doc/ejk/copyright)
    if(NOT EXISTS ${folder}/share/${file})
      message(FATAL_ERROR "share/${file} was not installed")
    endif()
  endforeach()
endfunction()

function(require_library)  # more options
  configure(${CMAKE_CURRENT_LIST_DIR} ${WORK}/consumer -DCMAKE_PREFIX_PATH=${prefix} ${ARGN})
  run(${CMAKE_COMMAND} --build ${WORK}/consumer)
  run(${EMULATOR} ${WORK}/consumer/consumer)
  run(${EMULATOR} ${WORK}/consumer/host ${WORK}/consumer/extension.so)
endfunction()

function(test_static)
  run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
  require_program(${prefix})
  require_library()
endfunction()

function(test_shared)
  set(ENV{EJK_BUILD} ${BUILD})
  # The objects of a unity build are those of folders.
  file(STRINGS ${BUILD}/CMakeCache.txt unity REGEX "^CMAKE_UNITY_BUILD:")
  list(TRANSFORM unity PREPEND -D)
  configure(${root} ${WORK}/build -DBUILD_SHARED_LIBS=ON -DEJK_TESTS=OFF ${unity}
    -DCMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CURRENT_LIST_DIR}/take_object)
  run(${CMAKE_COMMAND} --build ${WORK}/build)
  run(${CMAKE_COMMAND} --install ${WORK}/build --prefix ${prefix})
  require_program(${prefix})
  # What the library was built from is not looked for.
  require_library(-DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON -DCMAKE_DISABLE_FIND_PACKAGE_PkgConfig=ON)
endfunction()

function(test_subdirectory)
  configure(${CMAKE_CURRENT_LIST_DIR}/parent ${WORK}/build -DEJK_ROOT=${root})
  # Not the target `consumer`, which waits for the library and so compiles all of it.
  set(object consumer.o)
  if(options MATCHES "CMAKE_GENERATOR:INTERNAL=Ninja")
    set(object CMakeFiles/consumer.dir/consumer.cpp.o)
  endif()
  run(${CMAKE_COMMAND} --build ${WORK}/build --target ${object})
endfunction()

function(test_deb)
  find_program(dpkg_deb dpkg-deb NO_CACHE)
  if(NOT dpkg_deb)
    message(STATUS "skipped: dpkg-deb is not installed")
    return()
  endif()
  if(EMULATOR)
    message(STATUS "skipped: dpkg-shlibdeps knows the packages of this machine's libraries, not those of another's")
    return()
  endif()
  run(${CPACK} --config ${BUILD}/CPackConfig.cmake -G DEB -B ${WORK}/made)
  file(GLOB package ${WORK}/made/ejk_*.deb)
  run(${dpkg_deb} --info ${package})
  run(${dpkg_deb} -x ${package} ${WORK}/unpacked)
  require_program(${WORK}/unpacked/usr)

  set(ENV{PKG_CONFIG_PATH} ${WORK}/unpacked/usr/lib/pkgconfig)
  execute_process(COMMAND pkg-config --cflags --libs ejk
    OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  file(STRINGS ${BUILD}/CMakeCache.txt compiler REGEX "^CMAKE_CXX_COMPILER:")
  string(REGEX REPLACE "^[^=]*=" "" compiler "${compiler}")
  run(${compiler} -std=c++20 ${CMAKE_CURRENT_LIST_DIR}/consumer.cpp -o consumer ${flags})
  run(${WORK}/consumer)
endfunction()

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})
cmake_language(CALL test_${TEST})
