starling_fuzz(membership_statement membership_statement_fuzz.cc
              LIBRARIES starling_gossip_membership)
starling_fuzz(membership_message membership_message_fuzz.cc
              LIBRARIES starling_gossip_membership starling_transport)
starling_fuzz(membership_events membership_events_fuzz.cc
              LIBRARIES starling_gossip_membership starling_transport)
starling_fuzz(progress_events progress_events_fuzz.cc
              LIBRARIES starling_gossip_membership starling_transport)
