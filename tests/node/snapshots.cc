#include "tests/node/snapshots.h"

namespace starling::node {

StatusSnapshot busy_snapshot() {
  StatusSnapshot status;
  status.node = {std::string(64, 'a'), "mossy-otter", "0.1.0", 12.5, std::string(16, '1')};
  status.phase = Phase::training;
  status.address = "127.0.0.1:7700";
  status.swarm = {std::string(64, 'b'), "secret", "7c1e"};
  status.model = {"small", 175'258, 10, 28};
  status.progress = {8'412, 0.4, 538'368, 2'100'000, 6'000'000, 0.35, 3.57, 5'880.0};
  status.progress.since_step_s = status.progress.last_step_s;
  status.train.loss = 2.417;
  status.train.images_per_second = 2'914;
  status.train.swarm_images_per_second = 23'180;
  status.train.gossip_wait_ratio = 0.004;
  status.traffic = {3'000'000, 2'900'000, 2'500'000, 2'400'000, 812, 36'000};
  status.period = {.steps = 8, .reason = "codec_time"};
  status.disagreement_ratio = 3.7e-3;
  status.members = {{std::string(64, 'a'), "mossy-otter", MemberState::alive, "127.0.0.1:7700",
                     538'368, 1, "", true},
                    {std::string(64, 'c'), "brisk-wren", MemberState::alive, "127.0.0.1:7701",
                     500'000, 1, "", false},
                    {std::string(64, 'd'), "ash\x1b[2J\nheron", MemberState::suspect, "", 400'000,
                     2, "3 probes unanswered", false},
                    {std::string(64, 'e'), "", MemberState::left, "", 100'000, 1, "", false}};
  NeighbourStatus first;
  first.id = std::string(64, 'c');
  first.name = "brisk-wren";
  first.edge = "open";
  first.rtt_ms = 4.2;
  first.level = "L2";
  first.level_reason = "enough";
  first.exchanges = 400;
  first.bytes_sent = 1'250'000;
  first.bytes_received = 1'200'000;
  first.queued_bytes = 36'000;
  first.disagreement_ratio = 3.7e-3;
  first.last_exchange_s = 0.6;
  NeighbourStatus second;
  second.id = std::string(64, 'd');
  second.state = MemberState::suspect;
  second.edge = "lost";
  status.neighbours = {first, second};
  return status;
}

}  // namespace starling::node
