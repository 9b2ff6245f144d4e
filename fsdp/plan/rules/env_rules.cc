#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <set>

#include "base/rank_env.h"
#include "base/text.h"
#include "fsdp/plan/rules/rule_table.h"
#include "fsdp/plan/rules/rules.h"

namespace fsdpd {
namespace {

// What NCCL 2.28.9 reads, after NCCL_: the names in its library, less those that are words of its log. NCCL
// ignores a name that it does not know, so that a slip of the pen changes nothing and says nothing.
constexpr const char* kNccl[] = {
    "ALGO",
    "ALLOC_P2P_NET_LL_BUFFERS",
    "BUFFSIZE",
    "CGA_CLUSTER_SIZE",
    "CHECK_POINTERS",
    "CHUNK_SIZE",
    "COLLNET_ENABLE",
    "COLLNET_NODE_THRESHOLD",
    "COMM_BLOCKING",
    "COMM_ID",
    "COMM_SHRINK_SHARE_RESOURCES",
    "COMM_SPLIT_SHARE_RESOURCES",
    "CONF_FILE",
    "CONNECT_ROUND_MAX_PEERS",
    "CREATE_THREAD_CONTEXT",
    "CROSS_NIC",
    "CTA_POLICY",
    "CUMEM_ENABLE",
    "CUMEM_HOST_ENABLE",
    "DEBUG",
    "DEBUG_FILE",
    "DEBUG_SUBSYS",
    "DEBUG_TIMESTAMP_FORMAT",
    "DEBUG_TIMESTAMP_LEVELS",
    "DMABUF_ENABLE",
    "ENV_PLUGIN",
    "GDRCOPY_ENABLE",
    "GDRCOPY_FIFO_ENABLE",
    "GDRCOPY_FLUSH_ENABLE",
    "GDRCOPY_SYNC_ENABLE",
    "GDR_FLUSH_DISABLE",
    "GIN_COUNTER_POOL_SIZE",
    "GIN_ENABLE",
    "GIN_ERROR_QUERY_SEC",
    "GIN_GDAKI_NIC_HANDLER",
    "GIN_GDAKI_QP_DEPTH",
    "GIN_IB_ALLGATHER_TAG",
    "GIN_IB_ALLTOALL_TAG",
    "GIN_NCONTEXTS",
    "GIN_PROXY_QUEUE_SIZE",
    "GIN_SIGNAL_POOL_SIZE",
    "GIN_TYPE",
    "GRAPH_DUMP_FILE",
    "GRAPH_DUMP_FILE_RANK",
    "GRAPH_FILE",
    "GRAPH_HELPER_DISABLE",
    "GRAPH_MIXING_SUPPORT",
    "GRAPH_REGISTER",
    "GROUP_CUDA_STREAM",
    "HOSTID",
    "IB_ADAPTIVE_ROUTING",
    "IB_ADDR_FAMILY",
    "IB_ADDR_RANGE",
    "IB_AR_THRESHOLD",
    "IB_DATA_DIRECT",
    "IB_DISABLE",
    "IB_ECE_ENABLE",
    "IB_FIFO_TC",
    "IB_GID_INDEX",
    "IB_HCA",
    "IB_MERGE_NICS",
    "IB_MERGE_VFS",
    "IB_MQP_RETRY_ALL",
    "IB_MQP_RETRY_CNT",
    "IB_MQP_RETRY_SLEEP_MSEC",
    "IB_PCI_RELAXED_ORDERING",
    "IB_PKEY",
    "IB_QPS_PER_CONNECTION",
    "IB_RETRY_CNT",
    "IB_RETURN_ASYNC_EVENTS",
    "IB_ROCE_VERSION_NUM",
    "IB_ROUTABLE_FLID_GID_INDEX",
    "IB_SL",
    "IB_SPLIT_DATA_ON_QPS",
    "IB_TC",
    "IB_TIMEOUT",
    "IB_USE_INLINE",
    "IB_WARN_RAIL_LOCAL",
    "IGNORE_CPU_AFFINITY",
    "IGNORE_DISABLED_P2P",
    "L1_SHARED_MEMORY_CARVEOUT",
    "LAUNCH_MODE",
    "LAUNCH_ORDER_IMPLICIT",
    "LAUNCH_RACE_FATAL",
    "LEGACY_CUDA_REGISTER",
    "LL128_BUFFSIZE",
    "LL128_C2C",
    "LL128_NTHREADS",
    "LL_BUFFSIZE",
    "LOCAL_REGISTER",
    "MAX_CTAS",
    "MAX_NCHANNELS",
    "MAX_NRINGS",
    "MAX_P2P_NCHANNELS",
    "MEM_SYNC_DOMAIN",
    "MIN_CTAS",
    "MIN_NCHANNELS",
    "MIN_NRINGS",
    "MIN_P2P_NCHANNELS",
    "MNNVL_CLIQUE_ID",
    "MNNVL_ENABLE",
    "MNNVL_RAIL_PER_HOST",
    "MNNVL_SCATTER_NETS_ENABLE",
    "MNNVL_UUID",
    "NCHANNELS_PER_NET_PEER",
    "NET",
    "NETDEVS_POLICY",
    "NET_DISABLE_INTRA",
    "NET_FORCE_FLUSH",
    "NET_FORCE_MERGE",
    "NET_GDR_C2C",
    "NET_GDR_LEVEL",
    "NET_GDR_READ",
    "NET_MERGE_LEVEL",
    "NET_OPTIONAL_RECV_COMPLETION",
    "NET_OVERHEAD",
    "NET_PLUGIN",
    "NET_PLUGIN_REF_COUNT",
    "NET_SHARED_BUFFERS",
    "NET_SHARED_COMMS",
    "NSOCKS_PERTHREAD",
    "NTHREADS",
    "NVB_DISABLE",
    "NVB_PRECONNECT",
    "NVLINK_UTIL_CENTRIC_SCHED_ENABLE",
    "NVLSTREE_MAX_CHUNKSIZE",
    "NVLS_CHUNKSIZE",
    "NVLS_ENABLE",
    "NVLS_NCHANNELS",
    "NVTX_DISABLE",
    "OOB_NET_ENABLE",
    "OOB_NET_IFNAME",
    "P2P_DIRECT_DISABLE",
    "P2P_DISABLE",
    "P2P_LEVEL",
    "P2P_LL_THRESHOLD",
    "P2P_NET_CHUNKSIZE",
    "P2P_NVL_CHUNKSIZE",
    "P2P_PCI_CHUNKSIZE",
    "P2P_PXN_LEVEL",
    "P2P_READ_ENABLE",
    "P2P_SCHEDULE_GROUP_SIZE",
    "P2P_USE_CUDA_MEMCPY",
    "PAT_ENABLE",
    "PROFILER_PLUGIN",
    "PROGRESS_APPENDOP_FREQ",
    "PROTO",
    "PROXY_APPEND_BATCH_SIZE",
    "PROXY_CPUSET",
    "PROXY_DUMP_SIGNAL",
    "PXN_C2C",
    "PXN_DISABLE",
    "RAS_ADDR",
    "RAS_ENABLE",
    "RAS_TIMEOUT_FACTOR",
    "REPORT_CONNECT_PROGRESS",
    "RUNTIME_CONNECT",
    "SET_CPU_STACK_SIZE",
    "SET_STACK_SIZE",
    "SET_THREAD_NAME",
    "SHM_DISABLE",
    "SHM_LOCALITY",
    "SHM_MEMCPY_MODE",
    "SHM_USE_CUDA_MEMCPY",
    "SINGLE_PROC_MEM_REG_ENABLE",
    "SOCKET_FAMILY",
    "SOCKET_IFNAME",
    "SOCKET_INLINE",
    "SOCKET_MIN_TASKSIZE",
    "SOCKET_NTHREADS",
    "SOCKET_RCVBUF",
    "SOCKET_RETRY_CNT",
    "SOCKET_RETRY_SLEEP_MSEC",
    "SOCKET_SNDBUF",
    "SYM_CTAS",
    "SYM_KERNEL",
    "THREAD_THRESHOLDS",
    "TOPO_DUMP_FILE",
    "TOPO_DUMP_FILE_RANK",
    "TOPO_FILE",
    "TUNER_PLUGIN",
    "UID_STAGGER_RATE",
    "UID_STAGGER_THRESHOLD",
    "UNPACK_DOUBLE_NCHANNELS",
    "WARN_ENABLE_DEBUG_INFO",
    "WIN_ENABLE",
    "WIN_STRIDE",
    "WORK_ARGS_BYTES",
    "WORK_FIFO_BYTES",
};

std::vector<std::string> NcclNames() {
  std::vector<std::string> names;
  for (const char* name : kNccl) names.push_back(absl::StrCat("NCCL_", name));
  return names;
}

std::string At(int index, const char* what) { return absl::StrCat("env[", index, "].", what); }

// One variable of the spec, judged; no finding where it is sound.
using Judge = Finding (*)(const v1::Variable& variable);

Findings Each(const Facts& f, const char* what, Judge judge) {
  Findings findings;
  for (int i = 0; i < f.job.env_size(); ++i) {
    Finding finding = judge(f.job.env(i));
    if (finding.reason.empty()) continue;
    finding.field = At(i, what);
    findings.push_back(std::move(finding));
  }
  return findings;
}

// Judged further only where nothing else is wrong with it.
bool IsName(const v1::Variable& variable) { return WhyNoEnvName(variable.name()).empty(); }

Finding NameIsOne(const v1::Variable& variable) {
  const std::string why = WhyNoEnvName(variable.name());
  if (why.empty()) return {};
  const size_t equals = variable.name().find('=');
  return {absl::StrCat("the name ", why),
          equals == std::string::npos ? "write a name such as NCCL_DEBUG"
                                      : "write the value apart from the name, such as NCCL_DEBUG: INFO"};
}

Finding ValueIsOne(const v1::Variable& variable) {
  const std::string why = WhyNoEnvValue(variable.value());
  if (why.empty()) return {};
  return {absl::StrCat("the value ", why), "write a shorter text, or name a file that holds it"};
}

Finding NotTheDaemons(const v1::Variable& variable) {
  const std::string why = WhyTheDaemons(variable.name(), variable.value());
  if (why.empty()) return {};
  return {absl::StrCat(variable.name(), " is not for a job to set: ", why), "leave it out"};
}

Finding Allowed(const v1::Variable& variable) {
  if (!IsName(variable) || !WhyTheDaemons(variable.name(), variable.value()).empty()) return {};
  const std::string why = WhyAskAgents(variable.name());
  if (why.empty()) return {};
  return {absl::StrCat(variable.name(), " ", why, ": only agents that allow it start such a rank"),
          absl::StrCat("start the agents with --allow-env ", variable.name(), ", or leave it out")};
}

Finding NcclKnowsIt(const v1::Variable& variable) {
  const std::string& name = variable.name();
  if (!IsName(variable) || !absl::StartsWith(name, "NCCL_")) return {};
  const std::vector<std::string> names = NcclNames();
  if (std::find(names.begin(), names.end(), name) != names.end()) return {};
  const std::string nearest = Nearest(name, names);
  return {absl::StrCat("NCCL 2.28 knows no ", name, " and would ignore it"),
          nearest.empty() ? "look it up in NCCL's list of environment variables, or leave it out"
                          : absl::StrCat("write ", nearest)};
}

Findings Once(const Facts& f) {
  Findings findings;
  std::set<std::string> names;
  for (int i = 0; i < f.job.env_size(); ++i) {
    const std::string& name = f.job.env(i).name();
    if (names.insert(name).second) continue;
    findings.push_back(
        {absl::StrCat(name, " is there twice"), "leave all but one of them out", At(i, "name")});
  }
  return findings;
}

Findings NotTooMany(const Facts& f) {
  if (f.job.env_size() <= kMaxRankEnvVariables) return {};
  return {
      {absl::StrCat("has ", f.job.env_size(), " variables; at most ", kMaxRankEnvVariables, " are allowed"),
       "leave out what the ranks do not read"}};
}

const Rule kRules[] = {
    {"env_variables", FaultLevel::kError, "env", "env has at most 256 variables", NotTooMany},
    {"env_name", FaultLevel::kError, "env", "names in env are names of variables",
     [](const Facts& f) { return Each(f, "name", NameIsOne); }},
    {"env_name_once", FaultLevel::kError, "env", "a name is in env once", Once},
    {"env_value", FaultLevel::kError, "env", "values in env have no NUL and at most 4096 bytes",
     [](const Facts& f) { return Each(f, "value", ValueIsOne); }},
    {"env_of_the_daemon", FaultLevel::kError, "env", "env has no variable that the daemon sets",
     [](const Facts& f) { return Each(f, "name", NotTheDaemons); }},
    {"env_nccl_unknown", FaultLevel::kError, "env", "NCCL knows the names in env that begin with NCCL_",
     [](const Facts& f) { return Each(f, "name", NcclKnowsIt); }},
    {kEnvNeedsPermission, FaultLevel::kWarn, "env",
     "names in env begin with NCCL_, CUDA_, PYTORCH_ or TORCH_, and load no library",
     [](const Facts& f) { return Each(f, "name", Allowed); }},
};

}  // namespace

const std::vector<Rule>& EnvRules() {
  static const auto* rules = new std::vector<Rule>(std::begin(kRules), std::end(kRules));
  return *rules;
}

}  // namespace fsdpd
