starling_fuzz(node_config ${CMAKE_CURRENT_LIST_DIR}/node/config_fuzz.cc LIBRARIES starling_surface)
starling_fuzz(node_control ${CMAKE_CURRENT_LIST_DIR}/node/control_fuzz.cc LIBRARIES starling_surface)
starling_fuzz(node_proc ${CMAKE_CURRENT_LIST_DIR}/node/proc_fuzz.cc LIBRARIES starling_surface)
starling_fuzz(node_spread ${CMAKE_CURRENT_LIST_DIR}/node/spread_fuzz.cc LIBRARIES starling_surface)
