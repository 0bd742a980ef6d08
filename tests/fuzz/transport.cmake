foreach(target handshake record channel wire_codec address peer_list invite certificate)
  starling_fuzz(transport_${target} ${CMAKE_CURRENT_LIST_DIR}/transport_${target}_fuzz.cc
                LIBRARIES starling_transport)
endforeach()
# Writes the first inputs of the corpora above; run by hand when the wire changes.
add_executable(transport_seeds EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/transport_seeds.cc)
target_link_libraries(transport_seeds PRIVATE starling_options starling_transport)
