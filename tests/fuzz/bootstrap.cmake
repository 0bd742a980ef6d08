starling_fuzz(bootstrap_message bootstrap_message_fuzz.cc
              LIBRARIES starling_bootstrap starling_transport)
starling_fuzz(bootstrap_text bootstrap_text_fuzz.cc LIBRARIES starling_bootstrap)
starling_fuzz(join_events join_events_fuzz.cc LIBRARIES starling_bootstrap starling_transport)
