// Where ranks of this node write what they say, as far as the supervisor knows: log_keeper.h keeps it in
// files.
//
// Thread safety: all methods.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "agent/attempt.h"
#include "base/unique_fd.h"

namespace fsdpd {

class RankLogs {
 public:
  virtual ~RankLogs() = default;

  virtual std::string PathOf(const RankId& id) const = 0;
  virtual std::string DirectoryOf(
      const AttemptId& id) const = 0;  // Absolute: ranks leave their traces there too.
  // An error when not even /dev/null can be had: the agent is out of descriptors.
  virtual absl::StatusOr<UniqueFd> OpenForRank(const RankId& id) = 0;
  virtual void RankEnded(const RankId& id) = 0;
  // The agent's own, into the rank's log.
  virtual void AddNotice(const RankId& id, const std::string& words) = 0;
  virtual std::vector<std::string> Tail(const RankId& id, int lines) const = 0;
};

}  // namespace fsdpd
