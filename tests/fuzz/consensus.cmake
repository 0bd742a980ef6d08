starling_fuzz(consensus_message ${CMAKE_SOURCE_DIR}/tests/fuzz/consensus_message.cc
              LIBRARIES starling_gossip_consensus)
starling_fuzz(consensus_jobs ${CMAKE_SOURCE_DIR}/tests/fuzz/consensus_jobs.cc
              LIBRARIES starling_gossip_consensus)
starling_fuzz(consensus_events ${CMAKE_SOURCE_DIR}/tests/fuzz/consensus_events.cc
              LIBRARIES starling_gossip_consensus)
starling_fuzz(consensus_certificates ${CMAKE_CURRENT_LIST_DIR}/consensus_certificates_fuzz.cc
              LIBRARIES starling_gossip_consensus)
