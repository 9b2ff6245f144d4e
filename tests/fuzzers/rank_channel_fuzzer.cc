// Fuzzer of messages from an agent to a rank, at the rank's end of the socket.
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/log.h"
#include "base/rank/frame.h"
#include "fsdp/rank/rank_channel.h"
#include "tests/fuzzers/cases.h"

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  return fsdpd::fuzz::Mutate(fsdpd::v1::AgentToRank::default_instance(), data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fsdpd::TakeLog([](fsdpd::Severity, absl::string_view) {});
  std::string bytes;
  for (const std::string& part : fsdpd::fuzz::SplitParts(data, size)) {
    fsdpd::v1::AgentToRank message;
    if (!message.ParseFromString(part) || !fsdpd::AppendFrame(message, &bytes).ok()) bytes += part;
  }
  if (bytes.size() > 100'000) return 0;  // Capacity of a socket.
  int pair[2];
  FSDPD_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  fsdpd::RankChannel channel(pair[0]);
  FSDPD_CHECK(write(pair[1], bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  shutdown(pair[1], SHUT_WR);
  const bool launched = channel.ReadLaunch().ok();
  if (launched) {
    channel.StartReading([](const absl::Status&) {}, [](const fsdpd::v1::PeerFailed&) {},
                         [](const fsdpd::v1::LeaveOrder&) {}, [](const fsdpd::v1::TraceOrder&) {});
    channel.Get("k", absl::Seconds(10)).status().IgnoreError();  // Returns when the agent's end is closed.
  }
  close(pair[1]);
  return 0;
}
