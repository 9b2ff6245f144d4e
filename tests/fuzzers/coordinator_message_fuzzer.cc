// Fuzzer of messages from the coordinator to an agent: the stream, and the flow, supervisor, preflight and
// outbox behind it. Launched ranks report their start immediately.
#include "base/rank/frame.h"
#include "tests/fuzzers/agent_case.h"
#include "tests/fuzzers/cases.h"

namespace fsdpd::fuzz {
namespace {

void Take(v1::CoordinatorMessage message, AgentCase* agent) {
  Attachment& attachment = agent->attachment;
  // Uses the stream's generation, except for the message that opens the stream.
  if (attachment.welcomed()) message.set_stream_generation(attachment.stream_generation());
  if (!attachment.Check(message).ok()) {
    attachment.End(/*in_order=*/false);
    agent->handler().Connected(false);
    attachment.Begin(agent->handler().Registration());
    return;
  }
  if (!attachment.welcomed()) {
    agent->handler().Connected(true);
    return attachment.Welcome(message);
  }
  attachment.Take(message);
  const size_t ranks = agent->peers.size();
  agent->handler().Received(message);
  agent->Turn();
  v1::RankToAgent started;
  started.mutable_started();
  for (size_t i = ranks; i < agent->peers.size(); ++i) {
    if (agent->peers[i]->socket.valid()) WriteFrame(agent->peers[i]->socket.get(), started).IgnoreError();
  }
}

}  // namespace
}  // namespace fsdpd::fuzz

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  return fsdpd::fuzz::Mutate(fsdpd::v1::CoordinatorMessage::default_instance(), data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto messages = fsdpd::fuzz::Messages<fsdpd::v1::CoordinatorMessage>(data, size);
  if (messages.size() > 50) return 0;
  fsdpd::fuzz::AgentCase agent;
  fsdpd::v1::CoordinatorMessage welcome;
  welcome.set_stream_generation(7);
  welcome.mutable_welcome();
  fsdpd::fuzz::Take(welcome, &agent);
  for (const auto& message : messages) fsdpd::fuzz::Take(message, &agent);
  agent.End();
  return 0;
}
