#include "agent/metrics_exporter.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <arpa/inet.h>
#include <prometheus/exposer.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>
#include <utility>

#include "agent/unique_fd.h"
#include "base/version.h"

namespace fsdpd {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

MetricFamily Single(const char* name, const char* help, double value,
                    std::vector<ClientMetric::Label> labels = {}) {
  ClientMetric metric;
  metric.label = std::move(labels);
  metric.gauge.value = value;
  return {name, help, MetricType::Gauge, {std::move(metric)}};
}

constexpr auto kKnockInterval = std::chrono::milliseconds(10);

// Connects to this machine's own `port`, in vain or not.
void Knock(int port) {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
}

}  // namespace

MetricsExporter::MetricsExporter(std::string node, int slots, Clock* clock)
    : node_(std::move(node)), slots_(slots), clock_(clock) {}

void MetricsExporter::RankLaunched(const RankId& id, const std::string& device) {
  MutexLock lock(&mutex_);
  Job& job = jobs_[id.of.job_id];
  if (job.attempt != id.of.attempt) {  // Counters start again.
    job.attempt = id.of.attempt;
    job.live_ranks = 0;
    job.ranks.clear();
  }
  job.ranks.insert_or_assign(id.rank, RankSeries(id, node_, device));
  ++job.live_ranks;
}

RankSeries* MetricsExporter::Find(const RankId& id) {
  const auto job = jobs_.find(id.of.job_id);
  if (job == jobs_.end() || job->second.attempt != id.of.attempt) return nullptr;
  const auto rank = job->second.ranks.find(id.rank);
  return rank == job->second.ranks.end() ? nullptr : &rank->second;
}

void MetricsExporter::RankPlanned(const RankId& id, const v1::MemoryPlan& plan) {
  MutexLock lock(&mutex_);
  if (RankSeries* series = Find(id)) series->SetPlan(plan);
}

void MetricsExporter::RankStepped(const RankId& id, int world, const v1::StepReport& report) {
  MutexLock lock(&mutex_);
  if (RankSeries* series = Find(id)) series->Add(report, world);
}

void MetricsExporter::RankEnded(const RankId& id) {
  MutexLock lock(&mutex_);
  RankSeries* series = Find(id);
  if (series == nullptr) return;
  series->SetUp(false);
  Job& job = jobs_[id.of.job_id];
  if (--job.live_ranks == 0) job.ended = clock_->Now();
}

void MetricsExporter::SetConnected(bool connected) {
  MutexLock lock(&mutex_);
  connected_ = connected;
}

void MetricsExporter::DropEnded() const {
  const absl::Time now = clock_->Now();
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    const Job& job = it->second;
    it = job.live_ranks == 0 && now - job.ended >= kSeriesLinger ? jobs_.erase(it) : std::next(it);
  }
}

std::vector<MetricFamily> MetricsExporter::Collect() const {
  MutexLock lock(&mutex_);
  DropEnded();
  std::vector<const RankSeries*> series;
  int live_ranks = 0;
  MetricFamily restarts{"fsdpd_restarts_total",
                        "Launches of the job after its first: its attempt number less one.",
                        MetricType::Counter,
                        {}};
  for (const auto& [id, job] : jobs_) {
    for (const auto& [number, rank] : job.ranks) series.push_back(&rank);
    live_ranks += job.live_ranks;
    ClientMetric metric;
    metric.label = {{kJobLabel, id}};
    metric.counter.value = std::max(0, job.attempt - 1);
    restarts.metric.push_back(std::move(metric));
  }
  std::vector<MetricFamily> families = CollectSeries(series);
  if (!restarts.metric.empty()) families.push_back(std::move(restarts));
  families.push_back(Single("fsdpd_agent_slots", "Ranks that this node can run at once.", slots_));
  families.push_back(Single("fsdpd_agent_ranks", "Rank processes that run on this node.", live_ranks));
  families.push_back(
      Single("fsdpd_agent_connected", "1 while the agent is attached to its coordinator.", connected_));
  families.push_back(
      Single("fsdpd_build_info", "The agent's version; always 1.", 1, {{"version", kVersion}}));
  return families;
}

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    const std::string& listen, std::shared_ptr<MetricsExporter> exporter) {
  const size_t colon = listen.rfind(':');
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(listen.substr(colon + 1), &port) || port < 0 ||
      port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("'", listen, "' is no HOST:PORT"));
  }
  try {  // The library throws when it cannot bind.
    auto exposer = std::make_unique<prometheus::Exposer>(listen);
    exposer->RegisterCollectable(exporter);
    const std::string endpoint =
        absl::StrCat(listen.substr(0, colon), ":", exposer->GetListeningPorts().at(0));
    return std::unique_ptr<MetricsServer>(
        new MetricsServer(std::move(exposer), std::move(exporter), endpoint));
  } catch (const std::exception& e) {
    return absl::UnavailableError(
        absl::StrCat("cannot serve metrics at ", listen, ": ", e.what(), " (is the port in use?)"));
  }
}

MetricsServer::MetricsServer(std::unique_ptr<prometheus::Exposer> exposer,
                             std::shared_ptr<MetricsExporter> exporter, std::string endpoint)
    : exporter_(std::move(exporter)), exposer_(std::move(exposer)), endpoint_(std::move(endpoint)) {}

MetricsServer::~MetricsServer() {
  const int port = exposer_->GetListeningPorts().at(0);
  const std::future<void> stopped = std::async(std::launch::async, [this] { exposer_.reset(); });
  // The library's listener looks at its stop flag every 2 s, unless somebody connects.
  do {
    Knock(port);
  } while (stopped.wait_for(kKnockInterval) != std::future_status::ready);
}

}  // namespace fsdpd
