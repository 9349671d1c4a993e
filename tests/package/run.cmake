# Installs the build in BUILD to a folder of its own under WORK, then configures, builds and runs the project
# beside this file against it, and the installed program where there is one.
#
#   cmake -D BUILD=... -D WORK=... -D GENERATOR=... -D MAKE=... -D CXX=... -D FLAGS=... -P run.cmake
cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGV} WORKING_DIRECTORY ${WORK} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})
set(prefix ${WORK}/prefix)
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${WORK}/build -G ${GENERATOR} -DCMAKE_MAKE_PROGRAM=${MAKE}
  -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_CXX_FLAGS=${FLAGS} -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF)
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${WORK}/build/consumer)
if(EXISTS ${prefix}/bin/ejk)
  run(${prefix}/bin/ejk --version)
  foreach(file bash-completion/completions/ejk zsh/site-functions/_ejk fish/vendor_completions.d/ejk.fish
               man/man1/ejk.1 man/man1/ejk-mask-info.1)
    if(NOT EXISTS ${prefix}/share/${file})
      message(FATAL_ERROR "share/${file} was not installed")
    endif()
  endforeach()
endif()
