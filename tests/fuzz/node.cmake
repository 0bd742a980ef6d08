starling_fuzz(node_config ${CMAKE_CURRENT_LIST_DIR}/node/config_fuzz.cc LIBRARIES starling_surface)
starling_fuzz(node_control ${CMAKE_CURRENT_LIST_DIR}/node/control_fuzz.cc LIBRARIES starling_surface)
starling_fuzz(node_proc ${CMAKE_CURRENT_LIST_DIR}/node/proc_fuzz.cc LIBRARIES starling_surface)
starling_fuzz(node_spread ${CMAKE_CURRENT_LIST_DIR}/node/spread_fuzz.cc LIBRARIES starling_surface)
starling_fuzz(node_http ${CMAKE_CURRENT_LIST_DIR}/node/http_fuzz.cc LIBRARIES starling_surface)
# By itself, because the rest of starling_node wants a trainer.
add_library(starling_final_result STATIC EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/node/final_result.cc)
target_link_libraries(starling_final_result
  PUBLIC starling_options starling_surface starling_gossip_consensus starling_training_core starling_faults)
starling_fuzz(node_certificate ${CMAKE_CURRENT_LIST_DIR}/node/certificate_fuzz.cc
              LIBRARIES starling_final_result)
