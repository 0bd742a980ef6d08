# Messages of an edge, and sequences of events of a mixer.
foreach(target messages events)
  starling_fuzz(exchange_${target} ${CMAKE_CURRENT_LIST_DIR}/exchange_${target}_fuzz.cc
                LIBRARIES starling_gossip_exchange)
endforeach()
# Writes the first inputs of the corpora above; run by hand when the wire changes.
add_executable(exchange_seeds EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/exchange_seeds.cc)
target_link_libraries(exchange_seeds PRIVATE starling_options starling_gossip_exchange)
