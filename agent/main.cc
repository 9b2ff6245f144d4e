// fsdpd-agent: hosts the ranks of one node. Exit status: --stopped-exit-code (0) after SIGTERM or SIGINT and
// a clean stop, 1 if the machine or the coordinator rejects it, 2 for invalid flags.
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/time/time.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/agent.h"
#include "agent/launch/path_roots.h"
#include "agent/ranks/rank_process.h"
#include "base/api/label_selector.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/net/address.h"
#include "base/net/quiet_grpc.h"
#include "base/process/cli_app.h"
#include "base/process/file_flags.h"
#include "base/process/open_files.h"
#include "base/process/text_files.h"
#include "base/process/uncaught.h"
#include "base/rank/rank_cores.h"
#include "base/spec_text/rank_env.h"
#include "base/unique_fd.h"
#include "base/version.h"

namespace fsdpd {
namespace {

constexpr int kRuntimeError = 1;
// A process in uninterruptible sleep survives SIGKILL; limits how long the agent waits for it.
constexpr absl::Duration kStopLimit = absl::Seconds(30);  // After the grace period.
constexpr int kStopPollMs = 20;

struct Flags {
  AgentOptions agent;
  std::string device = "auto";
  std::vector<std::string> labels;  // KEY=VALUE
  int slots = 0;
  int64_t grace_ms = 5000;
  int stopped_exit_code = 0;
  int64_t keep_days = 0;
  int64_t log_mib = kMaxLogBytes >> 20;
  int64_t work_mib = 0;
  std::string rank_cores = kNearCores;
  std::string port_file;
  bool insecure = false;
};

// Validators for CLI11: the error, or "".
std::string CheckListen(const std::string& address) {
  return std::string(ParseHostPort(address).status().message());
}

std::string CheckAddress(const std::string& address) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  if (!parsed.ok()) return std::string(parsed.status().message());
  return parsed->port > 0 ? "" : "port: invalid (got 0, want 1..65535)";
}

std::string CheckAddresses(const std::string& text) {
  const absl::StatusOr<std::vector<std::string>> addresses = ParseAddresses(text);
  if (!addresses.ok()) return std::string(addresses.status().message());
  for (const std::string& address : *addresses) {
    if (const std::string wrong = CheckAddress(address); !wrong.empty()) return wrong;
  }
  return "";
}

std::string CheckNotEmpty(const std::string& path) {
  return path.empty() ? "is empty; write a path after it" : "";
}

std::string CheckNode(const std::string& node) {
  const absl::Status status = CheckNodeName(node);
  return status.ok() ? "" : absl::StrFormat("the name '%s' %s", node, status.message());
}

std::string CheckAllowedEnv(const std::string& pattern) {
  std::string why = WhyNoEnvPattern(pattern);
  if (why.empty()) why = WhyReservedEnv(pattern, "");
  return why.empty() ? "" : absl::StrFormat("'%s' cannot be allowed: %s", pattern, why);
}

std::string CheckLabel(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos) return absl::StrFormat("'%s' is not KEY=VALUE", text);
  absl::Status status = CheckLabelKey(text.substr(0, equals));
  status.Update(CheckLabelValue(text.substr(equals + 1)));
  return std::string(status.message());
}

std::string CheckDomain(const std::string& name) { return std::string(CheckLabelValue(name).message()); }

// Parses all labels; returns the error, or "".
std::string ParseLabels(const std::vector<std::string>& texts, std::map<std::string, std::string>* labels) {
  for (const std::string& text : texts) {
    const std::string key = text.substr(0, text.find('='));
    if (labels->emplace(key, text.substr(key.size() + 1)).second) continue;
    return absl::StrCat("--label: duplicate key '", key, "'");
  }
  if (labels->size() <= kMaxLabels) return "";
  return absl::StrCat("--label: too many (got ", labels->size(), ", want at most ", kMaxLabels, ")");
}

std::string CheckDirectory(const std::string& dir) {
  return std::string(ResolvePathRoot(dir).status().message());
}

// The host name as a node name; "" if it cannot be read.
std::string DefaultNode() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, sizeof name - 1) == 0 ? NodeNameOf(name) : "";
}

void DeclareSecurity(CLI::App* app, Flags* flags) {
  TlsFiles& tls = flags->agent.tls;
  CLI::Option* insecure = app->add_flag("--insecure", flags->insecure,
                                        "Connect in plaintext to an --insecure coordinator on this machine");
  const auto file = [&](const char* name, std::string* path, const char* about) {
    app->add_option(name, *path, about)->type_name("FILE")->excludes(insecure);
  };
  file("--coordinator-ca", &tls.trusted, "Verify the coordinator with the CA certificates in this PEM file");
  file("--tls-cert", &tls.certificate,
       "Set the certificate chain of this node (PEM); it must contain the node name");
  file("--tls-key", &tls.key, "Set the private key of --tls-cert; TLS files are reread on each connect");
}

// Checks the combination of security flags; returns the error, or "".
std::string SecurityError(const Flags& flags) {
  const TlsFiles& tls = flags.agent.tls;
  if (flags.insecure) {
    const std::vector<std::string> coordinators = *ParseAddresses(flags.agent.coordinator);
    for (const std::string& each : coordinators) {
      if (IsLoopback(*ParseHostPort(each))) continue;
      return absl::StrCat("--insecure: the coordinator ", each, " is not on this machine; use TLS");
    }
    return "";
  }
  for (const auto& [flag, value] :
       {std::pair("--coordinator-ca", &tls.trusted), std::pair("--tls-cert", &tls.certificate),
        std::pair("--tls-key", &tls.key)}) {
    if (value->empty()) {
      return absl::StrCat(flag, " is required, or --insecure for a coordinator on this machine");
    }
  }
  return "";
}

// Checks the certificate of this node before connecting, with the same error that the coordinator would
// return.
absl::Status CheckCertificate(const AgentOptions& options) {
  if (!options.tls.given()) return absl::OkStatus();
  FSDPD_ASSIGN_OR_RETURN(const TlsIdentity own, ReadTlsFiles(options.tls, Clock::Real()->Wall()));
  const absl::Status named = CheckNodeInNames(options.node, own.names);
  if (named.ok()) return named;
  return absl::PermissionDeniedError(
      absl::StrCat(options.tls.certificate, ": ", named.message(), " [NODE_NAME_MISMATCH]"));
}

// Flags for job placement.
void DeclarePlacement(CLI::App* app, Flags* flags) {
  app->add_option("--label", flags->labels,
                  "Add labels for resources.node_selector; repeatable, or comma-separated")
      ->delimiter(',')
      ->check(CheckLabel)
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  app->add_option("--nvlink-domain", flags->agent.nvlink_domain,
                  "Set the NVLink domain; jobs are placed within one domain if possible")
      ->check(CheckDomain)
      ->type_name("NAME");
}

// Flags for what jobs may do on this node, other than compute.
void DeclarePermissions(CLI::App* app, Flags* flags) {
  app->add_option("--allow-env", flags->agent.allowed_env,
                  "Allow jobs to set these environment variables; * is a wildcard; repeatable")
      ->type_name("PATTERN")
      ->check(CheckAllowedEnv);
  app->add_option("--plugin-dir", flags->agent.plugin_dirs,
                  "Allow plug-ins and packages (model.package) below this directory; repeatable")
      ->check(CheckDirectory);
  app->add_option("--path-root", flags->agent.path_roots,
                  "Restrict data and checkpoints to this directory; repeatable")
      ->check(CheckDirectory);
}

void Declare(CLI::App* app, Flags* flags) {
  const auto add = [app](const char* name, auto* value, const char* about, const auto&... checks) {
    CLI::Option* option = app->add_option(name, *value, about)->capture_default_str();
    (option->check(checks), ...);
  };
  app->set_version_flag("--version", std::string("fsdpd-agent ") + kVersion);
  app->add_option("--coordinator", flags->agent.coordinator,
                  "Set the coordinator address HOST:PORT, or a comma-separated list")
      ->required()
      ->check(CheckAddresses);
  app->add_option("--node", flags->agent.node,
                  "Set the node name, unique in the cluster (an RFC 1123 subdomain)")
      ->default_str("the host's name")
      ->transform([](const std::string& name) { return NodeNameOf(name); })
      ->check(CheckNode);
  add("--device", &flags->device, "Set the device of ranks; auto: cuda if available; fails if GPUs were lost",
      OneOf({"cpu", "cuda", "auto"}));
  add("--slots", &flags->slots, "Limit the ranks that run at a time; 0: one per GPU, or per core on cpu",
      InRange(0, 1024));
  add("--metrics-listen", &flags->agent.metrics_listen, "Serve /metrics on HOST:PORT; port 0 picks a port",
      CheckListen);
  app->add_option("--port-file", flags->port_file,
                  "Write the HOST:PORT of /metrics to this file once it is served");
  app->add_option("--work-dir", flags->agent.work_dir,
                  "Store rank logs, traces and step records in this directory")
      ->required()
      ->check(CheckNotEmpty);
  app->add_option("--rank-binary", flags->agent.rank_binary,
                  "Set the rank binary; default: fsdpd-rank next to fsdpd-agent");
  add("--bind-address", &flags->agent.bind_address,
      "Set the address at which other nodes reach the ranks of this node");
  add("--rank-cores", &flags->rank_cores,
      "Set the cores of GPU ranks; near: those of the NUMA node of the GPU", OneOf({kNearCores, kAllCores}));
  DeclarePlacement(app, flags);
  DeclarePermissions(app, flags);
  add("--keep-jobs", &flags->agent.directories.keep_jobs,
      "Keep logs and traces of this many jobs; running jobs always keep theirs",
      InRange(int64_t{1}, int64_t{1000000}));
  add("--keep-days", &flags->keep_days,
      "Remove logs and traces this many days after their last write; 0: never",
      InRange(int64_t{0}, int64_t{36500}));
  add("--log-mib", &flags->log_mib, "Keep the newest MiB of each rank log; readers get a notice of the rest",
      InRange(int64_t{1}, int64_t{1} << 20));
  add("--work-mib", &flags->work_mib, "Remove files of the oldest attempts above this many MiB; 0: no limit",
      InRange(int64_t{0}, int64_t{1} << 30));
  add("--grace-ms", &flags->grace_ms, "Set the default grace period in which stopped ranks save and exit",
      InRange(int64_t{1}, int64_t{3600000}));
  add("--stopped-exit-code", &flags->stopped_exit_code,
      "Set the exit status after SIGTERM or SIGINT; 0 completes a Kubernetes Job", InRange(0, 255));
  DeclareSecurity(app, flags);
}

std::string DefaultRankBinary() {
  std::error_code error;
  const std::filesystem::path directory =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  const std::filesystem::path sibling = directory / "fsdpd-rank";
  if (std::filesystem::exists(sibling, error)) return sibling;
  return (directory.parent_path() / "fsdp" / "fsdpd-rank").string();
}

// Stores the number of GPUs for the next start. Called when this agent holds the lock of the work directory.
// If it cannot be written, the next start skips its check.
void RememberGpus(const Flags& flags, const DeviceOffer& offer, const MachineFacts& machine) {
  const int gpus = offer.device == v1::DEVICE_CUDA ? offer.slots : 0;
  if (gpus == 0 && machine.gpus_on_bus > 0 && flags.device == "auto") {
    LogWarning("running ranks on CPU cores although the PCI bus has GPUs reason=%s",
               machine.gpus.ok() ? "the NVIDIA driver lists none" : machine.gpus.status().message());
  }
  if (gpus == machine.gpus_offered) return;
  const absl::Status written = ReplaceText(GpusOfferedPath(flags.agent.work_dir), absl::StrCat(gpus, "\n"));
  if (!written.ok())
    LogWarning("failed to store the number of GPUs; the next start will not detect missing ones error=%s",
               written.message());
}

int Fail(const absl::Status& status) {
  LogError("%s", WithFlag({}, status));
  return kRuntimeError;
}

int FailOfFile(const std::vector<FileFlag>& files, const absl::Status& status) {
  LogError("%s", WithFlag(files, status));
  return IsWrongPath(files, status) ? kUsageError : kRuntimeError;
}

// Waits for a signal or a refusal. Returns the signal; 0 for a refusal or a timeout.
int AwaitSignal(int signals, int refusal, int timeout_ms) {
  pollfd fds[] = {{signals, POLLIN, 0}, {refusal, POLLIN, 0}};
  int ready = 0;
  do {
    ready = poll(fds, 2, timeout_ms);
  } while (ready < 0 && errno == EINTR);
  if ((fds[0].revents & POLLIN) == 0) return 0;
  signalfd_siginfo info;
  if (read(signals, &info, sizeof info) != sizeof info) return 0;
  LogInfo("stopping signal=%d", info.ssi_signo);
  return static_cast<int>(info.ssi_signo);
}

// Stops all ranks and delivers the remaining messages. A second SIGINT (Ctrl-C at a terminal) skips the grace
// period. A second SIGTERM does not: Slurm sends another one at the end of its time limit, as preStop hooks
// do in Kubernetes, and ranks may be writing a checkpoint. Their sender follows with SIGKILL.
int StopCleanly(Agent* agent, absl::Duration grace, int signals) {
  agent->StopRanks(grace);
  const absl::Time grace_end = Clock::Real()->Now() + grace;
  bool hurries = false;
  while (!agent->Stopped()) {
    if (AwaitSignal(signals, -1, kStopPollMs) == SIGINT) {
      hurries = true;
      agent->StopRanks(absl::ZeroDuration());
    }
    if (Clock::Real()->Now() < grace_end + kStopLimit) continue;
    LogError("ranks survived SIGKILL; a device or a file system may hang");
    return kRuntimeError;
  }
  // If the coordinator comes back within the grace period, this agent reports how its ranks ended.
  while (!agent->AllDelivered() && !hurries && Clock::Real()->Now() < grace_end) {
    hurries = AwaitSignal(signals, -1, kStopPollMs) != 0;
  }
  agent->Detach();
  LogInfo("stopped");
  return 0;
}

// Warns about a loopback bind address, unless the coordinator is on this machine too.
void WarnOfLoopback(const AgentOptions& agent) {
  if (!IsLoopback({agent.bind_address, 0})) return;
  const std::vector<std::string> coordinators = *ParseAddresses(agent.coordinator);
  if (std::all_of(coordinators.begin(), coordinators.end(),
                  [](const std::string& each) { return IsLoopback(*ParseHostPort(each)); })) {
    return;
  }
  LogWarning(
      "--bind-address %s is a loopback address: ranks of other nodes cannot reach this node's ranks; set it "
      "to an address of this node",
      agent.bind_address);
}

int Serve(Flags flags, int signals) {
  std::error_code
      // If the working directory was removed, the path stays relative, and opening it reports the error.
      unknown;
  const std::filesystem::path work_dir = std::filesystem::absolute(flags.agent.work_dir, unknown);
  // The coordinator shows this path to users.
  if (!unknown) flags.agent.work_dir = work_dir.lexically_normal().string();
  if (const absl::Status own = CheckOwnAddress(flags.agent.bind_address); !own.ok()) {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat("--bind-address: ", own.message(), " [ADDRESS_NOT_AVAILABLE]")));
  }
  WarnOfLoopback(flags.agent);
  if (const absl::Status certificate = CheckCertificate(flags.agent); !certificate.ok()) {
    const TlsFiles& tls = flags.agent.tls;
    return FailOfFile(
        {{"--coordinator-ca", tls.trusted}, {"--tls-cert", tls.certificate}, {"--tls-key", tls.key}},
        certificate);
  }
  MachineFacts machine = ProbeMachine();
  machine.gpus_offered = ReadGpusOffered(flags.agent.work_dir);
  const absl::StatusOr<DeviceOffer> offer = DecideOffer(flags.device, flags.slots, machine);
  if (!offer.ok()) return Fail(offer.status());
  flags.agent.offer = *offer;
  flags.agent.probe = [device = offer->device == v1::DEVICE_CUDA ? "cuda" : "cpu", slots = offer->slots] {
    return DecideOffer(device, slots, ProbeMachine());
  };
  flags.agent.grace = absl::Milliseconds(flags.grace_ms);
  flags.agent.max_log_bytes = flags.log_mib << 20;
  flags.agent.directories.max_bytes = flags.work_mib << 20;
  if (flags.keep_days > 0) flags.agent.directories.keep_for = absl::Hours(24 * flags.keep_days);
  if (flags.agent.rank_binary.empty()) {
    flags.agent.rank_binary = DefaultRankBinary();
  } else if (const absl::Status usable = CheckRankBinary(flags.agent.rank_binary); !usable.ok()) {
    LogError("--rank-binary: %s [FILE_ERROR]", usable.message());
    return kUsageError;
  }
  const UniqueFd refusal(eventfd(0, EFD_CLOEXEC));
  FSDPD_CHECK(refusal.valid());
  absl::StatusOr<std::unique_ptr<Agent>> agent =
      Agent::Start(flags.agent, [&refusal, &flags](const absl::Status& why) {
        LogError("coordinator rejected this node coordinator=%s node=%s error=%s", flags.agent.coordinator,
                 flags.agent.node, WithFlag({}, why));
        eventfd_write(refusal.get(), 1);
      });
  if (!agent.ok()) return Fail(agent.status());
  LogInfo(
      "serving node=%s coordinator=%s device=%s slots=%d memory_bytes_per_slot=%d metrics=%s work_dir=%s "
      "rank=%s",
      flags.agent.node, flags.agent.coordinator, offer->device == v1::DEVICE_CUDA ? "cuda" : "cpu",
      offer->slots, offer->memory_bytes_per_slot, (*agent)->metrics_endpoint(), flags.agent.work_dir,
      flags.agent.rank_binary);
  RememberGpus(flags, *offer, machine);
  if (!flags.port_file.empty()) {
    const absl::Status written = ReplaceText(flags.port_file, (*agent)->metrics_endpoint() + "\n");
    if (!written.ok()) return FailOfFile({{"--port-file", flags.port_file}}, written);
  }
  if (AwaitSignal(signals, refusal.get(), /*timeout_ms=*/-1) == 0) return kRuntimeError;
  const int stopped = StopCleanly(agent->get(), flags.agent.grace, signals);
  return stopped == 0 ? flags.stopped_exit_code : stopped;
}

int Main(int argc, char** argv) {
  Flags flags;
  const std::unique_ptr<CLI::App> app =
      MakeApp("Hosts the ranks of one node for fsdpd-coordinator.", "fsdpd-agent");
  Declare(app.get(), &flags);
  if (const std::optional<int> code = ParseArguments(app.get(), argc, argv); code.has_value()) return *code;
  // Before any thread exists: setenv is not thread-safe. Ranks inherit this variable.
  setenv(kRankCoresVariable, flags.rank_cores.c_str(), /*overwrite=*/1);
  if (flags.agent.node.empty()) flags.agent.node = DefaultNode();
  if (const std::string wrong = CheckNode(flags.agent.node); !wrong.empty()) {
    std::cerr << "--node: required, since the host name is not a valid node name: " << wrong
              << " [INVALID_FLAG]\n";
    return kUsageError;
  }
  if (const std::string wrong = ParseLabels(flags.labels, &flags.agent.labels); !wrong.empty()) {
    std::cerr << wrong << " [INVALID_FLAG]\n";
    return kUsageError;
  }
  if (const std::string wrong = SecurityError(flags); !wrong.empty()) {
    std::cerr << wrong << " [INVALID_FLAG]\n";
    return kUsageError;
  }
  SetLogName("agent " + flags.agent.node);
  LogUncaught();
  RaiseOpenFiles();
  // Before any thread exists, so that all inherit the mask and the signals are read in one place.
  sigset_t handled;
  sigemptyset(&handled);
  sigaddset(&handled, SIGTERM);
  sigaddset(&handled, SIGINT);
  FSDPD_CHECK(pthread_sigmask(SIG_BLOCK, &handled, nullptr) == 0);
  signal(SIGPIPE, SIG_IGN);
  // A write beyond RLIMIT_FSIZE then fails with EFBIG instead of killing the process.
  signal(SIGXFSZ, SIG_IGN);
  QuietGrpc();
  const UniqueFd signals(signalfd(-1, &handled, SFD_CLOEXEC));
  FSDPD_CHECK(signals.valid());
  return Serve(std::move(flags), signals.get());
}

}  // namespace
}  // namespace fsdpd

int main(int argc, char** argv) { return fsdpd::Main(argc, argv); }
