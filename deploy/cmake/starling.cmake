# Targets of the project: starling_library(), starling_test(), starling_fuzz(), starling_capnp(); and the packages they use.
include_guard(GLOBAL)
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(sodium REQUIRED IMPORTED_TARGET libsodium)
pkg_check_modules(crypto REQUIRED IMPORTED_TARGET libcrypto>=3.0)

find_program(STARLING_CCACHE ccache)
if(STARLING_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${STARLING_CCACHE})
endif()
find_program(STARLING_MOLD mold)

# Warnings and code generation that every target of ours shares.
add_library(starling_options INTERFACE)
target_compile_options(starling_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wnon-virtual-dtor
  -ffp-contract=off   # references stay bit-identical at both ends of an edge: no fused multiply-add
  $<$<BOOL:${STARLING_WERROR}>:-Werror>
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>)
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ takes what a unity file includes for a header, where anonymous namespaces in the types of others would be a fault.
  target_compile_options(starling_options INTERFACE -Wno-subobject-linkage)
endif()
if(STARLING_SANITIZE)
  # vptr looks at objects through a pipe and calls each one invalid where a test leaves no descriptors.
  target_compile_options(starling_options INTERFACE
    -fsanitize=${STARLING_SANITIZE} -fno-sanitize=vptr -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  target_link_options(starling_options INTERFACE -fsanitize=${STARLING_SANITIZE})
endif()
if(STARLING_FUZZ)
  target_compile_options(starling_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(STARLING_MOLD)
  target_link_options(starling_options INTERFACE -fuse-ld=mold)
endif()
target_include_directories(starling_options INTERFACE ${CMAKE_SOURCE_DIR})

# Debian's standalone Asio sees clang's coroutines only when told; one definition for the whole build.
# It would also decide by the order of includes, file by file, how it allocates; so it is told that too.
add_library(starling_asio INTERFACE)
target_compile_definitions(starling_asio INTERFACE
  ASIO_STANDALONE ASIO_NO_DEPRECATED ASIO_SEPARATE_COMPILATION ASIO_HAS_CO_AWAIT
  ASIO_HAS_STD_COROUTINE ASIO_HAS_STD_ALIGNED_ALLOC)
# g++ 12 sees a mismatch of operators in every coroutine frame of Asio.
target_compile_options(starling_asio INTERFACE
  $<$<CXX_COMPILER_ID:GNU>:-Wno-mismatched-new-delete>)
target_link_libraries(starling_asio INTERFACE Threads::Threads)

# What has planted bugs or fault points links this: see node/base/fault.h.
add_library(starling_faults INTERFACE)
target_compile_definitions(starling_faults INTERFACE $<$<BOOL:${STARLING_FAULTS}>:STARLING_FAULTS>)

# starling_library(NAME SOURCES ... HEADERS ... [PUBLIC targets...] [PRIVATE targets...])
# makes the target starling_NAME; headers are compiled on their own by all_verify_interface_header_sets.
function(starling_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;HEADERS;PUBLIC;PRIVATE" ${ARGN})
  add_library(starling_${name} STATIC ${arg_SOURCES})
  target_sources(starling_${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${CMAKE_SOURCE_DIR}
                 FILES ${arg_HEADERS})
  target_link_libraries(starling_${name}
    PUBLIC starling_options ${arg_PUBLIC}
    PRIVATE ${arg_PRIVATE})
  target_compile_options(starling_${name} PRIVATE
    $<$<CXX_COMPILER_ID:Clang>:-Wglobal-constructors>)
endfunction()

# starling_capnp(TARGET FILE.capnp) compiles a schema into the target. Only *_codec.cc files include its header.
function(starling_capnp target schema)
  find_program(STARLING_CAPNP capnp REQUIRED)
  pkg_check_modules(capnp REQUIRED IMPORTED_TARGET capnp)
  file(RELATIVE_PATH folder ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  set(out ${CMAKE_BINARY_DIR}/capnp)
  set(stem ${out}/${folder}/${schema})
  add_custom_command(OUTPUT ${stem}.c++ ${stem}.h
    COMMAND ${CMAKE_COMMAND} -E make_directory ${out}
    COMMAND ${STARLING_CAPNP} compile -oc++:${out} --src-prefix=${CMAKE_SOURCE_DIR}
            ${CMAKE_CURRENT_SOURCE_DIR}/${schema}
    DEPENDS ${schema} VERBATIM)
  set_source_files_properties(${stem}.c++ PROPERTIES COMPILE_OPTIONS
    "-include;${CMAKE_SOURCE_DIR}/transport/capnp_compiler.h;-w")
  target_sources(${target} PRIVATE ${stem}.c++ ${stem}.h)
  target_include_directories(${target} SYSTEM PRIVATE ${out})
  target_link_libraries(${target} PRIVATE PkgConfig::capnp)
endfunction()

# starling_test(NAME [LABEL label] SOURCES ... [LIBRARIES ...]) makes the binary NAME_test and its ctest entry NAME; exit status 77 is a skip.
function(starling_test name)
  cmake_parse_arguments(arg "" "LABEL;TIMEOUT" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT arg_LABEL)
    set(arg_LABEL fast)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
    if(STARLING_SANITIZE)
      set(arg_TIMEOUT 1200)   # ThreadSanitizer takes 5 to 15 times as long, and a busy machine twice that
    endif()
  endif()
  add_executable(${name}_test ${arg_SOURCES})
  target_link_libraries(${name}_test PRIVATE starling_test_main ${arg_LIBRARIES})
  add_test(NAME ${name} COMMAND ${name}_test)
  set_tests_properties(${name} PROPERTIES LABELS ${arg_LABEL} TIMEOUT ${arg_TIMEOUT}
                       SKIP_RETURN_CODE 77)
endfunction()

# starling_fuzz(NAME SOURCE [LIBRARIES ...]): with STARLING_FUZZ a libFuzzer binary NAME_fuzz and a test with label fuzz
# that runs it for STARLING_FUZZ_SECONDS, beginning with the committed inputs, and fails where one of them asks for more than 64 MiB at once; without,
# a test that replays the committed corpus tests/fuzz/corpus/NAME through the same entry point.
function(starling_fuzz name source)
  cmake_parse_arguments(arg "" "" "LIBRARIES" ${ARGN})
  if(STARLING_FUZZ)
    add_executable(${name}_fuzz ${source})
    target_link_libraries(${name}_fuzz PRIVATE starling_options ${arg_LIBRARIES})
    target_link_options(${name}_fuzz PRIVATE -fsanitize=fuzzer)
    # New inputs go to the build folder; the committed ones are where the search starts. With one seed every machine tries the
    # same ones in turn, so that a change is refused for what it broke. Other seeds are for long runs of NAME_fuzz itself.
    file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz/${name})
    math(EXPR limit "${STARLING_FUZZ_SECONDS} * 3 + 60")
    add_test(NAME fuzz_smoke_${name}
             COMMAND ${name}_fuzz -seed=1 -max_total_time=${STARLING_FUZZ_SECONDS} -timeout=20
                     -malloc_limit_mb=64 -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1
                     ${CMAKE_BINARY_DIR}/fuzz/${name} ${CMAKE_SOURCE_DIR}/tests/fuzz/corpus/${name})
    set_tests_properties(fuzz_smoke_${name} PROPERTIES LABELS fuzz TIMEOUT ${limit})
    return()   # the fuzzer begins with the committed inputs: a replay would be the same twice
  endif()
  add_executable(${name}_replay ${source} ${CMAKE_SOURCE_DIR}/tests/support/fuzz_replay.cc)
  target_link_libraries(${name}_replay PRIVATE starling_options ${arg_LIBRARIES})
  add_test(NAME fuzz_replay_${name}
           COMMAND ${name}_replay ${CMAKE_SOURCE_DIR}/tests/fuzz/corpus/${name})
  set_tests_properties(fuzz_replay_${name} PROPERTIES LABELS fast TIMEOUT 120)
endfunction()
