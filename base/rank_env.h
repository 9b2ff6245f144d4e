// Which environment variables a job may set for its ranks, and their values: the same check at submit and in
// the agent that starts the ranks.
//
// Ranks run as their agent's user, and the libraries that they load take paths from the environment: a
// plug-in to load, or a file to write outside --path-root. A name that begins with one of those libraries'
// prefixes is therefore refused, unless it is known to be harmless (rank_env.cc lists them). So are other
// names that are known to do the same. Every other name passes. An agent's owner may allow more with
// --allow-env.
//
// Each Why...() returns the reason, or "".
#pragma once

#include <absl/strings/string_view.h>

#include <set>
#include <string>

namespace fsdpd {

constexpr size_t kMaxRankEnvNameBytes = 128;
constexpr size_t kMaxRankEnvValueBytes = 4096;  // The kernel takes 128 KiB a variable, and a path has 4.
constexpr int kMaxRankEnvVariables = 256;

// As a name of any variable.
std::string WhyNoEnvName(absl::string_view name);
std::string WhyNoEnvValue(absl::string_view value);
// Why its value is not for a job to choose: the daemon sets it, or relies on what it is.
std::string WhyTheDaemons(absl::string_view name, absl::string_view value);

// "CUDA_*, GLIBC_*, ..."
std::string CheckedEnvPrefixes();
// Why only an agent that allows the name starts a rank with it.
std::string WhyAskAgents(absl::string_view name);

// Of --allow-env: a name in which each `*` stands for any characters, as in NCCL_IB_*.
std::string WhyNoEnvPattern(absl::string_view pattern);
bool AllowsEnv(const std::set<std::string>& patterns, absl::string_view name);

}  // namespace fsdpd
