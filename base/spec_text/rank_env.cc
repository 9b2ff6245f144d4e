#include "base/spec_text/rank_env.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>

#include <algorithm>

#include "base/spec_text/nccl_env.h"

namespace fsdpd {
namespace {

constexpr absl::string_view kPrefixes[] = {"CUDA_", "GLIBC_", "LD_",    "MALLOC_",  "NCCL_",
                                           "NVTX_", "OMP_",   "PYTHON", "PYTORCH_", "TORCH_"};

struct ReservedVariable {
  absl::string_view name;
  absl::string_view value;  // Empty: any.
  absl::string_view why;
};
constexpr ReservedVariable kReserved[] = {
    {"CUDA_VISIBLE_DEVICES", "", "the agent assigns each rank its device"},
    {"CUDA_DEVICE_MAX_CONNECTIONS", "1", "a single connection serializes gathers, reductions and compute"},
    {"NCCL_COMM_ID", "", "ranks find each other through the coordinator, and each has several communicators"},
};

// Variables with the effect of LD_PRELOAD: plug-ins of NCCL, tools injected by CUDA and NVTX, files that set
// variables or name libraries, and, without a checked prefix, directories from which glibc, OpenSSL and RDMA
// drivers load code.
constexpr absl::string_view kLoads[] = {
    "CUDA_INJECTION32_PATH",
    "CUDA_INJECTION64_PATH",
    "FI_PROVIDER_PATH",
    "GCONV_PATH",
    "IBV_DRIVERS",
    "KINETO_CONFIG",
    "LD_AUDIT",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "NCCL_CONF_FILE",
    "NCCL_ENV_PLUGIN",
    "NCCL_NET_PLUGIN",
    "NCCL_PROFILER_PLUGIN",
    "NCCL_TUNER_PLUGIN",
    "NVTX_INJECTION32_PATH",
    "NVTX_INJECTION64_PATH",
    "OMP_TOOL_LIBRARIES",
    "OPENSSL_CONF",
    "OPENSSL_ENGINES",
    "OPENSSL_MODULES",
    "RDMAV_DRIVERS",
    "UCX_MODULE_DIR",
};

// Variables that name files which are created or overwritten with the permissions of the agent.
constexpr absl::string_view kWrites[] = {
    "CUBLASLT_LOG_FILE",
    "CUBLAS_LOGDEST_DBG",
    "CUDA_CACHE_PATH",
    "CUDA_COREDUMP_FILE",
    "CUDA_COREDUMP_PIPE",
    "CUDA_LOG_FILE",
    "CUDNN_LOGDEST_DBG",
    "CUSOLVER_LOG_FILE",
    "CUSPARSE_LOG_FILE",
    "CUTENSOR_LOG_FILE",
    "MALLOC_TRACE",
    "NCCL_DEBUG_FILE",
    "NCCL_GRAPH_DUMP_FILE",
    "NCCL_TOPO_DUMP_FILE",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "UCX_LOG_FILE",
};

// All other names of NCCL are harmless except for these: files that it reads, and a service that listens.
constexpr absl::string_view kNcclOthers[] = {"NCCL_GRAPH_FILE", "NCCL_RAS_ADDR", "NCCL_TOPO_FILE"};

// Harmless names with other prefixes: numbers, switches and log levels. CUDA_DEVICE_ORDER is not listed,
// since devices are assigned by number, nor are switches that make a rank write a file into its directory.
constexpr absl::string_view kHarmless[] = {
    "CUDA_AUTO_BOOST",
    "CUDA_BINARY_LOADER_THREAD_COUNT",
    "CUDA_CACHE_DISABLE",
    "CUDA_CACHE_MAXSIZE",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DISABLE_PTX_JIT",
    "CUDA_FORCE_PTX_JIT",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_DATA_LOADING",
    "CUDA_MODULE_LOADING",
    "CUDA_SCALE_LAUNCH_QUEUES",
    "MALLOC_ARENA_MAX",
    "MALLOC_ARENA_TEST",
    "MALLOC_CHECK_",
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_PERTURB_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
    "OMP_CANCELLATION",
    "OMP_DISPLAY_AFFINITY",
    "OMP_DISPLAY_ENV",
    "OMP_DYNAMIC",
    "OMP_MAX_ACTIVE_LEVELS",
    "OMP_NESTED",
    "OMP_NUM_THREADS",
    "OMP_PLACES",
    "OMP_PROC_BIND",
    "OMP_SCHEDULE",
    "OMP_STACKSIZE",
    "OMP_THREAD_LIMIT",
    "OMP_WAIT_POLICY",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONFAULTHANDLER",
    "PYTHONHASHSEED",
    "PYTHONUNBUFFERED",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "PYTORCH_NVML_BASED_CUDA_CHECK",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "TORCH_CPP_LOG_LEVEL",
    "TORCH_CUDNN_V8_API_DISABLED",
    "TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT",
    "TORCH_DISABLE_ADDR2LINE",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_LINALG_PREFER_CUSOLVER",
    "TORCH_LOGS",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_AVOID_RECORD_STREAMS",
    "TORCH_NCCL_BLOCKING_WAIT",
    "TORCH_NCCL_CUDA_EVENT_CACHE",
    "TORCH_NCCL_DESYNC_DEBUG",
    "TORCH_NCCL_ENABLE_MONITORING",
    "TORCH_NCCL_ENABLE_TIMING",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
    "TORCH_NCCL_HIGH_PRIORITY",
    "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_NCCL_USE_COMM_NONBLOCKING",
    "TORCH_SHOW_CPP_STACKTRACES",
};

template <typename Names>
bool Has(const Names& names, absl::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

bool IsHarmless(absl::string_view name) {
  if (absl::StartsWith(name, "NCCL_")) return Has(NcclEnvNames(), name) && !Has(kNcclOthers, name);
  return Has(kHarmless, name);
}

// Backtracks only to the last `*`, which suffices for patterns without other wildcards.
bool Matches(absl::string_view pattern, absl::string_view name) {
  size_t at = 0, star = absl::string_view::npos, resume = 0;
  for (size_t i = 0; i < name.size();) {
    if (at < pattern.size() && pattern[at] == '*') {
      star = at++;
      resume = i;
    } else if (at < pattern.size() && pattern[at] == name[i]) {
      ++at;
      ++i;
    } else if (star != absl::string_view::npos) {
      at = star + 1;
      i = ++resume;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', at) == absl::string_view::npos;
}

}  // namespace

std::string WhyNoEnvName(absl::string_view name) {
  if (name.empty()) return "is empty";
  if (name.size() > kMaxRankEnvNameBytes)
    return absl::StrCat("has ", name.size(), " characters; at most ", kMaxRankEnvNameBytes, " are allowed");
  const bool plain = std::all_of(name.begin(), name.end(),
                                 [](unsigned char c) { return absl::ascii_isalnum(c) || c == '_'; });
  if (!plain || absl::ascii_isdigit(static_cast<unsigned char>(name[0])))
    return "must contain only letters, digits and '_', and not start with a digit";
  return "";
}

std::string WhyNoEnvValue(absl::string_view value) {
  if (value.find('\0') != absl::string_view::npos) return "contains a NUL byte";
  if (value.size() <= kMaxRankEnvValueBytes) return "";
  return absl::StrCat("has ", value.size(), " bytes; at most ", kMaxRankEnvValueBytes, " are allowed");
}

std::string WhyReservedEnv(absl::string_view name, absl::string_view value) {
  if (absl::StartsWith(name, "FSDPD_")) return "the agent identifies its processes by it";
  for (const ReservedVariable& reserved : kReserved) {
    if (reserved.name == name && (reserved.value.empty() || reserved.value == value))
      return std::string(reserved.why);
  }
  return "";
}

std::string WhyNeedsAllowEnv(absl::string_view name) {
  if (Has(kLoads, name))
    return "makes ranks load a library that the job names, which then runs as the agent's user";
  if (Has(kWrites, name)) return "makes ranks write a file that the job names, as the agent's user";
  for (const absl::string_view prefix : kPrefixes) {
    if (absl::StartsWith(name, prefix) && !IsHarmless(name))
      return absl::StrCat("begins with ", prefix, " and is not known to be harmless");
  }
  return "";
}

std::string WhyNoEnvPattern(absl::string_view pattern) {
  return WhyNoEnvName(absl::StrReplaceAll(pattern, {{"*", "_"}}));
}

bool AllowsEnv(const std::set<std::string>& patterns, absl::string_view name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [name](const std::string& pattern) { return Matches(pattern, name); });
}

}  // namespace fsdpd
