# libtorch: an imported target made by hand, because find_package(Torch) asks CMake 3.25 for a CUDA dialect that it does
# not know. STARLING_LIBTORCH is a folder that holds torch/include, torch/lib and, for CUDA, nvidia/*/lib.
include_guard(GLOBAL)

set(torch_root ${STARLING_LIBTORCH}/torch)
foreach(needed include/torch/csrc/api/include/torch/torch.h lib/libtorch_cpu.so lib/libc10.so)
  if(NOT EXISTS ${torch_root}/${needed})
    message(FATAL_ERROR
      "LibTorch is not at STARLING_LIBTORCH=${STARLING_LIBTORCH}: torch/${needed} is missing.\n"
      "Run deploy/setup, which puts LibTorch 2.11 there, or configure with "
      "-DSTARLING_LIBTORCH=FOLDER, or build everything but training and node with "
      "-DSTARLING_TORCH=OFF.")
  endif()
endforeach()

# --no-as-needed: ATen registers its kernels from static constructors, which no symbol of ours refers to.
# libgomp: the copy that LibTorch itself uses; a second OpenMP runtime would bring a second set of threads.
set(torch_libraries ${torch_root}/lib/libtorch_cpu.so ${torch_root}/lib/libc10.so)
file(GLOB torch_openmp ${torch_root}/lib/libgomp*.so*)
list(APPEND torch_libraries ${torch_openmp})
if(STARLING_CUDA)
  foreach(library libtorch libtorch_cuda libc10_cuda)
    if(NOT EXISTS ${torch_root}/lib/${library}.so)
      message(FATAL_ERROR "STARLING_CUDA=ON needs ${torch_root}/lib/${library}.so: run deploy/setup --cuda.")
    endif()
    list(APPEND torch_libraries ${torch_root}/lib/${library}.so)
  endforeach()
  # LibTorch and our kernels share one CUDA runtime, the wheel's.
  file(GLOB torch_cudart ${STARLING_LIBTORCH}/nvidia/*/lib/libcudart.so.*)
  list(APPEND torch_libraries ${torch_cudart})
endif()

# The libraries of NVIDIA's wheels (cuDNN, NCCL, cuBLAS, the run-time) lie beside torch.
file(GLOB torch_nvidia_folders LIST_DIRECTORIES true ${STARLING_LIBTORCH}/nvidia/*/lib)

add_library(libtorch INTERFACE IMPORTED GLOBAL)
target_include_directories(libtorch SYSTEM INTERFACE
  ${torch_root}/include ${torch_root}/include/torch/csrc/api/include)
target_link_libraries(libtorch INTERFACE
  -Wl,--push-state,--no-as-needed ${torch_libraries} -Wl,--pop-state)
foreach(folder ${torch_root}/lib ${torch_nvidia_folders})
  target_link_options(libtorch INTERFACE -Wl,-rpath,${folder} -Wl,-rpath-link,${folder})
endforeach()
if(STARLING_CUDA)
  # Headers of CUDA, which LibTorch's own include.
  file(GLOB torch_cuda_headers LIST_DIRECTORIES true ${STARLING_LIBTORCH}/nvidia/cu*/include)
  target_include_directories(libtorch SYSTEM INTERFACE ${torch_cuda_headers})
  target_compile_definitions(libtorch INTERFACE STARLING_CUDA=1)
endif()

# starling_torch_pch(TARGET): compiles <torch/torch.h> once for the target: 17 s a file become 2 s.
function(starling_torch_pch target)
  target_precompile_headers(${target} PRIVATE <torch/torch.h>)
  if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
    target_compile_options(${target} PRIVATE
      -fpch-instantiate-templates "SHELL:-Xclang -fno-pch-timestamp")
  endif()
endfunction()
