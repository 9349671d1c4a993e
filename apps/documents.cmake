# Writes what `ejk help --completion` and `ejk help --man` print to files in the folder TO.
#
#   cmake -D PROGRAM=.../ejk -D TO=... [-D MPI=ON] -P documents.cmake
cmake_minimum_required(VERSION 3.25)

function(write_output file)
  execute_process(COMMAND ${PROGRAM} ${ARGN} OUTPUT_FILE ${file} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${TO})
file(MAKE_DIRECTORY ${TO}/man1)

execute_process(COMMAND ${PROGRAM} help OUTPUT_VARIABLE help COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "\n  [a-z][a-z0-9-]*  " commands "${help}")
list(TRANSFORM commands STRIP)
write_output(${TO}/man1/ejk.1 help --man)
foreach(command ${commands})
  write_output(${TO}/man1/ejk-${command}.1 help --man ${command})
endforeach()
if(MPI)
  write_output(${TO}/man1/ejk-mpi.1 help --man mpi)
endif()
write_output(${TO}/_ejk help --completion zsh)
write_output(${TO}/ejk.fish help --completion fish)
write_output(${TO}/ejk.bash help --completion bash)
