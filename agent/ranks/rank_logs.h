// Interface of the log storage of ranks, as the supervisor uses it; log_keeper.h stores logs in files.
//
// Thread-safe.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "agent/launch/attempt.h"
#include "base/unique_fd.h"

namespace fsdpd {

class RankLogs {
 public:
  virtual ~RankLogs() = default;

  virtual std::string PathOf(const RankId& id) const = 0;
  virtual std::string DirectoryOf(
      const AttemptId& id) const = 0;  // Absolute path; ranks write their traces there too.
  // Fails only if /dev/null cannot be opened either: the agent is out of file descriptors.
  virtual absl::StatusOr<UniqueFd> OpenForRank(const RankId& id) = 0;
  virtual void RankEnded(const RankId& id) = 0;
  // Appends a notice of the agent to the log of the rank.
  virtual void AddNotice(const RankId& id, const std::string& words) = 0;
  virtual std::vector<std::string> Tail(const RankId& id, int lines) const = 0;
};

}  // namespace fsdpd
