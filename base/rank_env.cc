#include "base/rank_env.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include <algorithm>

namespace fsdpd {
namespace {

constexpr absl::string_view kPrefixes[] = {"NCCL_", "CUDA_", "PYTORCH_", "TORCH_"};

struct Ours {
  absl::string_view name;
  absl::string_view value;  // Empty: any.
  absl::string_view why;
};
constexpr Ours kOurs[] = {
    {"CUDA_VISIBLE_DEVICES", "", "the agent gives each rank its device, by its number among the node's"},
    {"CUDA_DEVICE_MAX_CONNECTIONS", "1",
     "one connection puts gathers, reductions and compute into one queue, where nothing overlaps"},
    {"NCCL_COMM_ID", "", "ranks find each other through the coordinator, and each has several communicators"},
};

// As good as LD_PRELOAD: NCCL's plug-ins, the tools that CUDA and NVTX inject, and a file of NCCL's in which
// lines set variables.
constexpr absl::string_view kLoads[] = {
    "CUDA_INJECTION32_PATH", "CUDA_INJECTION64_PATH", "NCCL_CONF_FILE",
    "NCCL_ENV_PLUGIN",       "NCCL_NET_PLUGIN",       "NCCL_PROFILER_PLUGIN",
    "NCCL_TUNER_PLUGIN",     "NVTX_INJECTION32_PATH", "NVTX_INJECTION64_PATH",
};

// Files that are made or overwritten, wherever the agent's user may.
constexpr absl::string_view kWrites[] = {"CUDA_COREDUMP_FILE", "NCCL_DEBUG_FILE", "NCCL_GRAPH_DUMP_FILE",
                                         "NCCL_TOPO_DUMP_FILE"};

}  // namespace

std::string WhyNoEnvName(absl::string_view name) {
  if (name.empty()) return "is empty";
  if (name.size() > kMaxRankEnvNameBytes)
    return absl::StrCat("has ", name.size(), " characters; at most ", kMaxRankEnvNameBytes, " are allowed");
  const bool plain = std::all_of(name.begin(), name.end(),
                                 [](unsigned char c) { return absl::ascii_isalnum(c) || c == '_'; });
  if (!plain || absl::ascii_isdigit(static_cast<unsigned char>(name[0])))
    return "may hold only letters, digits and '_', and no digit first";
  return "";
}

std::string WhyNoEnvValue(absl::string_view value) {
  if (value.find('\0') != absl::string_view::npos) return "holds a NUL, which would end it there";
  if (value.size() <= kMaxRankEnvValueBytes) return "";
  return absl::StrCat("has ", value.size(), " bytes; at most ", kMaxRankEnvValueBytes, " are allowed");
}

std::string WhyTheDaemons(absl::string_view name, absl::string_view value) {
  if (absl::StartsWith(name, "FSDPD_")) return "the daemon tells its own processes by it";
  for (const Ours& ours : kOurs) {
    if (ours.name == name && (ours.value.empty() || ours.value == value)) return std::string(ours.why);
  }
  return "";
}

std::string RankEnvPrefixes() {
  std::string text;
  for (const absl::string_view prefix : kPrefixes)
    absl::StrAppend(&text, text.empty() ? "" : ", ", prefix, "*");
  return text;
}

std::string WhyAskAgents(absl::string_view name) {
  if (std::find(std::begin(kLoads), std::end(kLoads), name) != std::end(kLoads))
    return "makes ranks load a library that the job names, which then runs as the agent's user";
  if (std::find(std::begin(kWrites), std::end(kWrites), name) != std::end(kWrites))
    return "makes ranks write a file that the job names, as the agent's user";
  const bool usual = std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                                 [name](absl::string_view prefix) { return absl::StartsWith(name, prefix); });
  return usual ? "" : absl::StrCat("is none of ", RankEnvPrefixes());
}

}  // namespace fsdpd
