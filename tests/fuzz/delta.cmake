# Fuzz targets of gossip/delta.
starling_fuzz(delta_parse ${CMAKE_CURRENT_LIST_DIR}/delta_parse_fuzz.cc
              LIBRARIES starling_gossip_delta)
starling_fuzz(delta_encode ${CMAKE_CURRENT_LIST_DIR}/delta_encode_fuzz.cc
              LIBRARIES starling_gossip_delta)
starling_fuzz(delta_payload ${CMAKE_CURRENT_LIST_DIR}/delta_payload_fuzz.cc
              LIBRARIES starling_gossip_delta)
