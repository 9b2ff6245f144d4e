// Which environment variables a job may set for its ranks, and what they may hold: the same for the rules at
// submit and for the agent that starts the ranks.
//
// An allow-list, because a rank runs as its agent's user: LD_PRELOAD or PATH would be a program of one's own
// there. What NCCL, CUDA and LibTorch read tunes them, and is let through by its prefix, but for those names
// with which they load a library or write a file; these and all others are for an agent's owner to allow
// (--allow-env).
//
// Each function says what is wrong, or "".
#pragma once

#include <absl/strings/string_view.h>

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

// "NCCL_*, CUDA_*, PYTORCH_*, TORCH_*"
std::string RankEnvPrefixes();
// Why only an agent that allows the name starts a rank with it.
std::string WhyAskAgents(absl::string_view name);

}  // namespace fsdpd
