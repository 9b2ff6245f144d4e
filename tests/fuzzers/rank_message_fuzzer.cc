// Fuzzer of messages from ranks to their agent, for an attempt with two local ranks. Parts that do not parse
// are sent as raw bytes without a frame.
#include <unistd.h>

#include "base/rank/frame.h"
#include "tests/fuzzers/agent_case.h"
#include "tests/fuzzers/cases.h"

namespace fsdpd::fuzz {
namespace {

void Launch(AgentCase* agent) {
  v1::CoordinatorMessage welcome;
  welcome.set_stream_generation(7);
  welcome.mutable_welcome();
  agent->handler().Connected(true);
  agent->attachment.Welcome(welcome);
  v1::CoordinatorMessage order;
  v1::Launch* const launch = order.mutable_launch();
  launch->set_job_id("j");
  launch->set_attempt(1);
  launch->set_world_size(2);
  launch->set_ranks(2);
  launch->add_devices(0);
  launch->add_devices(1);
  launch->mutable_spec()->mutable_checkpoint()->set_dir("/tmp/j");
  launch->mutable_spec()->mutable_restart()->set_hang_seconds(5);
  agent->handler().Received(order);
  agent->Turn();
  FSDPD_CHECK(agent->peers.size() == 2);
}

void Send(const std::string& part, Peer* peer) {
  if (!peer->socket.valid()) return;
  std::string bytes = part;
  v1::RankToAgent message;
  if (message.ParseFromString(part)) {
    bytes.clear();
    FSDPD_CHECK(AppendFrame(message, &bytes).ok());
  }
  // If the socket is full, the frame is torn, so the rank ends.
  if (send(peer->socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
    peer->End({1, 0});
}

}  // namespace
}  // namespace fsdpd::fuzz

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  return fsdpd::fuzz::Mutate(fsdpd::v1::RankToAgent::default_instance(), data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<std::string> parts = fsdpd::fuzz::SplitParts(data, size);
  if (parts.size() > 50) return 0;
  fsdpd::fuzz::AgentCase agent;
  fsdpd::fuzz::Launch(&agent);
  for (size_t i = 0; i < parts.size(); ++i) {
    fsdpd::fuzz::Send(parts[i], agent.peers[i % 4 == 3 ? 1 : 0].get());
    agent.Turn(absl::Seconds(1));
  }
  agent.peers[0]->End({parts.size() % 2 == 0 ? 0 : 3, 0});
  agent.End();
  return 0;
}
