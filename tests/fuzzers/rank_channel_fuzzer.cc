// What an agent may say on the socket to a rank, at the rank's end.
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/frame.h"
#include "base/log.h"
#include "fsdp/rank_channel.h"
#include "tests/fuzzers/cases.h"

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned int seed) {
  return fsdpd::fuzz::Mutate(fsdpd::v1::AgentToRank::default_instance(), data, size, most, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fsdpd::TakeLog([](fsdpd::Severity, absl::string_view) {});
  std::string bytes;
  for (const std::string& part : fsdpd::fuzz::Parted(data, size)) {
    fsdpd::v1::AgentToRank message;
    if (!message.ParseFromString(part) || !fsdpd::AppendFrame(message, &bytes).ok()) bytes += part;
  }
  if (bytes.size() > 100'000) return 0;  // What a socket holds.
  int pair[2];
  FSDPD_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  fsdpd::RankChannel channel(pair[0]);
  FSDPD_CHECK(write(pair[1], bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  shutdown(pair[1], SHUT_WR);
  const bool launched = channel.ReadLaunch().ok();
  if (launched) {
    channel.StartReading([](const absl::Status&) {}, [](const fsdpd::v1::PeerFailed&) {},
                         [](const fsdpd::v1::LeaveOrder&) {}, [](const fsdpd::v1::TraceOrder&) {});
    channel.Get("k", absl::Seconds(10)).status().IgnoreError();  // Until the agent's end is read.
  }
  close(pair[1]);
  return 0;
}
