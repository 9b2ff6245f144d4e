#include "agent/agent.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <prometheus/text_serializer.h>

#include <utility>

#include "agent/launch/path_roots.h"
#include "agent/ranks/internal_errors.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/version.h"

namespace fsdpd {
namespace {

// Replaces a wildcard host in `endpoint` by the bind address: other nodes cannot connect to a wildcard.
std::string Advertised(const std::string& endpoint, const std::string& bind_address) {
  for (const char* wildcard : {"0.0.0.0:", "[::]:"}) {
    if (absl::StartsWith(endpoint, wildcard))
      return absl::StrCat(bind_address, endpoint.substr(endpoint.rfind(':')));
  }
  return endpoint;
}

absl::StatusOr<std::vector<PathRoot>> ResolveAll(const std::vector<std::string>& dirs) {
  std::vector<PathRoot> roots;
  for (const std::string& dir : dirs) {
    FSDPD_ASSIGN_OR_RETURN(PathRoot root, ResolvePathRoot(dir));
    roots.push_back(std::move(root));
  }
  return roots;
}

// The channel reads these files only when it connects, which may be weeks from now. The result checks them at
// every scrape, so that an expired or invalid file is visible before the agent has to reconnect.
std::function<std::map<std::string, MetricsExporter::FileState>()> TlsFileStates(const TlsFiles& tls) {
  return [tls, last_fault = std::string(), last_warning = std::string()]() mutable {
    const absl::StatusOr<TlsIdentity> read = ReadTlsFiles(tls, Clock::Real()->Wall());
    std::string fault(read.status().message());
    if (fault != last_fault && !fault.empty())
      LogError("rejected TLS files; the previous ones stay in use error=%s", fault);
    if (read.ok()) LogTlsWarning(*read, &last_warning);
    const TlsExpiry expiry = ExpiryOf(tls);
    std::map<std::string, MetricsExporter::FileState> files;
    files["--coordinator-ca"] = {IsErrorOfFile(tls.trusted, fault), expiry.trusted};
    files["--tls-cert"] = {IsErrorOfFile(tls.certificate, fault), expiry.certificate};
    files["--tls-key"] = {IsErrorOfFile(tls.key, fault), std::nullopt};
    last_fault = std::move(fault);
    return files;
  };
}

}  // namespace

absl::StatusOr<std::unique_ptr<Agent>> Agent::Start(AgentOptions options,
                                                    std::function<void(const absl::Status&)> refused) {
  std::unique_ptr<Agent> agent(new Agent(std::move(options), std::move(refused)));
  FSDPD_RETURN_IF_ERROR(agent->StartParts());
  return agent;
}

Agent::Agent(AgentOptions options, std::function<void(const absl::Status&)> refused)
    : options_(std::move(options)),
      instance_(NewToken()),
      refused_(std::move(refused)),
      metrics_(std::make_shared<MetricsExporter>(options_.node, options_.offer.slots, Clock::Real())) {}

Agent::~Agent() {
  // The threads of the link call the other components and these call the link: stop it first, destroy it
  // last.
  if (link_ != nullptr) link_->Shutdown(absl::ZeroDuration());
  if (gpus_ != nullptr) gpus_->Stop();
}

absl::Status Agent::StartParts() {
  FSDPD_RETURN_IF_ERROR(CheckRankBinary(options_.rank_binary));
  FSDPD_ASSIGN_OR_RETURN(plugin_dirs_, ResolveAll(options_.plugin_dirs));
  FSDPD_ASSIGN_OR_RETURN(path_roots_, ResolveAll(options_.path_roots));
  FSDPD_ASSIGN_OR_RETURN(work_dir_lock_, LogKeeper::Prepare(options_.work_dir));
  FSDPD_RETURN_IF_ERROR(BecomeSubreaper());
  if (options_.tls.given()) metrics_->WatchFiles(TlsFileStates(options_.tls));
  if (options_.offer.device == v1::DEVICE_CUDA) {
    gpus_ = std::make_shared<GpuWatch>(options_.node, Clock::Real());
    gpus_->Start();
  }
  const auto metrics_text = [metrics = metrics_, gpus = gpus_] {
    std::vector<prometheus::MetricFamily> families = metrics->Collect();
    if (gpus != nullptr) {
      for (prometheus::MetricFamily& family : gpus->Collect()) families.push_back(std::move(family));
    }
    return prometheus::TextSerializer().Serialize(families);
  };
  FSDPD_ASSIGN_OR_RETURN(metrics_server_, MetricsServer::Start(options_.metrics_listen, metrics_text));
  AgentFlow::Options flow;
  flow.node = options_.node;
  flow.work_dir = options_.work_dir;
  flow.device = options_.offer.device;
  flow.about = [this] { return About(); };
  flow.refused = refused_;
  flow_ = std::make_unique<AgentFlow>(std::move(flow));
  link_ = std::make_unique<CoordinatorLink>(options_.coordinator, flow_.get(), Clock::Real(), options_.tls);
  const InternalErrors errors([this] { metrics_->AddInternalError(); });
  steps_ = std::make_unique<StepRecords>(options_.work_dir, [this] { metrics_->AddUnrecordedStep(); });
  logs_ = std::make_unique<LogKeeper>(
      options_.work_dir, [this](v1::LogLines lines) { return link_->SendLogs(std::move(lines)); },
      [this](absl::Duration lost) { metrics_->AddLogLoss(lost); }, steps_.get(), options_.max_log_bytes,
      errors);
  supervisor_ =
      std::make_unique<RankSupervisor>(RankOptions(errors), logs_.get(), flow_.get(), Clock::Real());
  directories_ = std::make_unique<JobDirectories>(options_.work_dir, options_.directories, [this] {
    std::map<std::string, std::set<int>> hosted;
    for (const v1::HostedAttempt& attempt : supervisor_->HostedAttempts())
      hosted[attempt.job_id()].insert(attempt.attempt());
    return hosted;
  });
  preflight_ = std::make_unique<Preflight>(Preflight::Options{options_.offer.device, options_.offer.slots},
                                           supervisor_.get(), gpus_.get(), Clock::Real(),
                                           [this](v1::PreflightResult result) {
                                             v1::AgentMessage message;
                                             *message.mutable_preflight() = std::move(result);
                                             link_->SendLifecycle(std::move(message));
                                           });
  flow_->Connect({link_.get(), supervisor_.get(), metrics_.get(), logs_.get(), steps_.get(),
                  directories_.get(), gpus_.get(), preflight_.get()});
  flow_->SendUndelivered();
  link_->Start();
  return absl::OkStatus();
}

RankSupervisor::Options Agent::RankOptions(InternalErrors errors) const {
  RankSupervisor::Options ranks;
  ranks.rank_binary = options_.rank_binary;
  ranks.slots = options_.offer.slots;
  ranks.device = options_.offer.device;
  ranks.bind_address = options_.bind_address;
  ranks.grace = options_.grace;
  ranks.allowed_env = options_.allowed_env;
  ranks.plugin_dirs = plugin_dirs_;
  if (gpus_ != nullptr) {
    ranks.used_bytes = [gpus = gpus_](int device, absl::Time since) {
      return gpus->UsedBytes(device, since);
    };
  }
  ranks.path_roots = path_roots_;
  ranks.errors = std::move(errors);
  return ranks;
}

void Agent::Detach() {
  link_->Shutdown(absl::Seconds(2));
  flow_->StoreRest();
}

DeviceOffer Agent::OfferNow() const {
  const absl::StatusOr<DeviceOffer> offer = options_.probe ? options_.probe() : options_.offer;
  if (offer.ok() && offer->device == options_.offer.device) return *offer;
  LogWarning("memory probe failed; registering the memory of the start error=%s", offer.status().ToString());
  return options_.offer;
}

v1::Register Agent::About() const {
  const DeviceOffer offer = OfferNow();
  v1::Register registration;
  registration.set_node(options_.node);
  registration.set_device(options_.offer.device);
  registration.set_slots(options_.offer.slots);
  registration.set_memory_bytes_per_slot(offer.memory_bytes_per_slot);
  registration.set_host_memory_bytes(offer.host_memory_bytes);
  registration.set_version(kVersion);
  registration.set_metrics_endpoint(Advertised(metrics_server_->endpoint(), options_.bind_address));
  registration.set_instance(instance_);
  registration.set_log_windows(true);
  registration.set_traces(true);
  registration.set_preflights(true);
  registration.set_step_records(true);
  registration.set_evidence(true);
  for (const std::string& name : options_.allowed_env) registration.add_allowed_env(name);
  registration.set_plugin_dirs_as_given(true);
  for (const PathRoot& dir : plugin_dirs_) {
    registration.add_plugin_dirs(dir.resolved);
    if (dir.given != dir.resolved) registration.add_plugin_dirs(dir.given);
  }
  for (const auto& [key, value] : options_.labels) {
    v1::Label* label = registration.add_labels();
    label->set_key(key);
    label->set_value(value);
  }
  registration.set_nvlink_domain(options_.nvlink_domain);
  return registration;
}

}  // namespace fsdpd
