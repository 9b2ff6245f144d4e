// Validation of environment variables that a job sets for its ranks, used at submit and by the agent that
// starts the ranks.
//
// Ranks run as the user of their agent, and the libraries that they load take paths from the environment: a
// plug-in to load, or a file to write outside of --path-root. So a name with the prefix of one of these
// libraries is rejected unless it is known to be harmless (listed in rank_env.cc), and so are other names
// with such effects. All other names are accepted. The owner of an agent may allow more with --allow-env.
//
// Each Why...() returns the reason to reject, or "".
#pragma once

#include <absl/strings/string_view.h>

#include <set>
#include <string>

namespace fsdpd {

constexpr size_t kMaxRankEnvNameBytes = 128;
// The kernel allows 128 KiB per variable; a path has up to 4 KiB.
constexpr size_t kMaxRankEnvValueBytes = 4096;
constexpr int kMaxRankEnvVariables = 256;

// Syntax of a name, and of a value.
std::string WhyNoEnvName(absl::string_view name);
std::string WhyNoEnvValue(absl::string_view value);
// Reserved names: the daemon sets the variable, or depends on its value.
std::string WhyReservedEnv(absl::string_view name, absl::string_view value);

// Names that need --allow-env on the agent.
std::string WhyNeedsAllowEnv(absl::string_view name);

// Patterns of --allow-env: a name in which each `*` matches any characters, as in NCCL_IB_*.
std::string WhyNoEnvPattern(absl::string_view pattern);
bool AllowsEnv(const std::set<std::string>& patterns, absl::string_view name);

}  // namespace fsdpd
