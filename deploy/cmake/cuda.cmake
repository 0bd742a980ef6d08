# starling_cuda_library(NAME SOURCES ... HEADERS ...): .cu files without torch, compiled by nvcc with rules of our own, because
# CMake 3.25 does not know CUDA 13's options. Where there is no nvcc, STARLING_NVCC is not found and there is no such target.
include_guard(GLOBAL)

# deploy/setup --cuda puts one beside LibTorch.
find_program(STARLING_NVCC nvcc HINTS ${STARLING_LIBTORCH}/nvidia/cu13/bin $ENV{CUDA_HOME}/bin /usr/local/cuda/bin DOC "The CUDA compiler")
find_program(STARLING_NVCC_HOST NAMES g++-12 g++ DOC "The compiler that nvcc compiles host code with")
# sm_80, sm_90, and PTX that a driver compiles for later ones. `90` alone for quick local work.
set(STARLING_CUDA_ARCHITECTURES "80-real;90-real;90-virtual" CACHE STRING
    "What kernels are compiled for: N-real (machine code) and N-virtual (PTX)")

if(STARLING_NVCC)
  get_filename_component(cuda_root ${STARLING_NVCC} REALPATH)
  get_filename_component(cuda_root ${cuda_root}/../.. ABSOLUTE)
  # The runtime of CUDA for what links no LibTorch; LibTorch brings its own, shared.
  find_library(STARLING_CUDART_STATIC cudart_static HINTS ${cuda_root}/lib64 ${cuda_root}/lib NO_DEFAULT_PATH)
  add_library(starling_cuda_headers INTERFACE)
  target_include_directories(starling_cuda_headers SYSTEM INTERFACE ${cuda_root}/include)

  # Where a product, sum, quotient or root could be rounded otherwise than on a CPU, it must not be: the codec and the
  # optimizer give the same bytes on both.
  set(cuda_flags -std=c++20 --expt-relaxed-constexpr -O3 -ccbin ${STARLING_NVCC_HOST} -I${CMAKE_SOURCE_DIR}
      --fmad=false --ftz=false --prec-div=true --prec-sqrt=true
      -Xcompiler=-fPIC,-ffp-contract=off,-Wall,-Wextra,-Wno-unknown-pragmas -Xfatbin=-compress-all)
  if(STARLING_WERROR)
    list(APPEND cuda_flags -Werror=all-warnings)
  endif()
  foreach(architecture ${STARLING_CUDA_ARCHITECTURES})
    string(REGEX REPLACE "-.*" "" number ${architecture})
    if(architecture MATCHES "-virtual$")
      list(APPEND cuda_flags -gencode=arch=compute_${number},code=compute_${number})
    else()
      list(APPEND cuda_flags -gencode=arch=compute_${number},code=sm_${number})
    endif()
  endforeach()
endif()

function(starling_cuda_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;HEADERS" ${ARGN})
  set(objects)
  foreach(source ${arg_SOURCES})
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${source}.o)
    add_custom_command(OUTPUT ${object}
      COMMAND ${STARLING_NVCC} ${cuda_flags} -MD -MF ${object}.d -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
      DEPENDS ${source} DEPFILE ${object}.d COMMENT "Compiling ${source} with nvcc" VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  add_library(starling_${name} STATIC ${objects})
  set_target_properties(starling_${name} PROPERTIES LINKER_LANGUAGE CXX)
  target_sources(starling_${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${CMAKE_SOURCE_DIR} FILES ${arg_HEADERS})
  target_link_libraries(starling_${name} PUBLIC starling_options starling_cuda_headers)
endfunction()
