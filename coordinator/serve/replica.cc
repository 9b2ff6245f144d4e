#include "coordinator/serve/replica.h"

#include <absl/strings/str_cat.h>

#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/mutex.h"
#include "coordinator/api/standby_api.h"
#include "coordinator/store/etcd_store.h"
#include "coordinator/store/leadership.h"

namespace fsdpd {
namespace {

constexpr absl::Duration kAskEvery = absl::Milliseconds(500);  // How often to check for a leader.
constexpr absl::Duration kLookEvery = absl::Milliseconds(100);
// After a failed term, other replicas get this time to lead.
constexpr absl::Duration kAfterFailure = absl::Seconds(10);
// Log interval of an error that prevents leading, while it lasts.
constexpr absl::Duration kSayEvery = absl::Minutes(1);
// etcd keeps each write of a running job's record in its history, and the record of a job with a thousand
// files has a megabyte.
constexpr absl::Duration kProgressEvery = absl::Seconds(30);

}  // namespace

// Server of a standby. Run() passes the leader's address to it.
class Replica::Standby {
 public:
  static absl::StatusOr<std::unique_ptr<Standby>> Open(EtcdClient* etcd, const std::string& prefix,
                                                       const PublicServerOptions& options,
                                                       const ServerFiles& files) {
    std::unique_ptr<Standby> standby(new Standby(etcd, prefix, files, options.clock));
    FSDPD_ASSIGN_OR_RETURN(
        standby->listener_,
        OpenPublicServer(options, files.security,
                         {{&standby->api_, v1::Coordinator::service_full_name(), true},
                          {&standby->agents_, v1::AgentLink::service_full_name(), false}}));
    return standby;
  }
  ~Standby() { listener_.Stop(); }

  const std::string& address() const { return listener_.address; }
  void Tell(LeaderSeen leader) {
    MutexLock lock(&mutex_);
    if (leader.address != leader_.address)
      LogInfo("standby leader=%s", leader.address.empty() ? "none" : leader.address);
    leader_ = std::move(leader);
  }

 private:
  Standby(EtcdClient* etcd, const std::string& prefix, const ServerFiles& files, Clock* clock)
      : jobs_(etcd, prefix),
        authorizer_(
            files.security.tokens.get(), [](const std::string&) { return std::nullopt; },
            files.security.revoked.get()),
        api_(&jobs_, {&authorizer_, files.security.audit.get(), clock, files.page->meters()}, clock,
             [this] { return leader(); }),
        agents_(&authorizer_, [this] { return leader(); }) {}
  LeaderSeen leader() {
    MutexLock lock(&mutex_);
    return leader_;
  }

  EtcdJobs jobs_;
  Authorizer authorizer_;
  Mutex mutex_;
  LeaderSeen leader_ ABSL_GUARDED_BY(mutex_);
  StandbyApi api_;
  StandbyAgents agents_;
  PublicServer listener_;
};

Replica::Replica(const ReplicaOptions& options, ServerFiles files)
    : options_(options), files_(std::move(files)) {}
Replica::~Replica() = default;

absl::StatusOr<std::unique_ptr<Replica>> Replica::Start(const ReplicaOptions& options) {
  FSDPD_ASSIGN_OR_RETURN(ServerFiles files, Server::OpenFiles(options.server));
  std::unique_ptr<Replica> replica(new Replica(options, std::move(files)));
  FSDPD_ASSIGN_OR_RETURN(replica->etcd_, EtcdClient::Make(options.etcd, options.server.clock->Wall()));
  replica->files_.page->ExportFiles([etcd = replica->etcd_, files = options.etcd.tls] {
    const std::optional<EtcdClient::TlsInUse> tls = etcd->Tls();
    if (!tls.has_value()) return std::vector<MetricsPage::FileState>();
    return TlsFileStates({"--etcd-ca", "--etcd-cert", "--etcd-key"}, files, tls->fault, tls->not_after,
                         tls->trusted_not_after);
  });
  // Only at the start: later etcd may be unavailable, and a replica checks the schema again before it leads.
  FSDPD_RETURN_IF_ERROR(EtcdJobs(replica->etcd_.get(), options.prefix).ReadSchema().status());
  replica->etcd_read_ = replica->Now();
  FSDPD_RETURN_IF_ERROR(replica->StandBy());
  // Keeps the chosen port from now on.
  replica->options_.server.listen = replica->standby_->address();
  if (options.advertise.empty()) replica->options_.advertise = replica->standby_->address();
  return replica;
}

const std::string& Replica::address() const { return options_.server.listen; }
std::string Replica::metrics_endpoint() const { return files_.page->endpoint(); }

absl::Status Replica::StandBy() {
  FSDPD_ASSIGN_OR_RETURN(standby_, Standby::Open(etcd_.get(), options_.prefix, options_.server, files_));
  return absl::OkStatus();
}

bool Replica::StandByAgain(const StopWaiter& stops) {
  std::string last_error;
  while (true) {
    const absl::Status stood = StandBy();
    if (stood.ok()) return true;
    // Another program may have taken the port, and may release it.
    const std::string why(stood.message());
    if (std::exchange(last_error, why) != why) LogError("cannot serve as standby; retrying error=%s", why);
    if (stops(kAskEvery)) return false;
  }
}

std::unique_ptr<Leadership> Replica::TryLead(std::atomic<bool>* lost) {
  const absl::StatusOr<std::string> leader = Leadership::Leader(etcd_.get(), options_.prefix);
  if (!leader.ok()) {
    // Once per outage: etcd members report the same cause with different messages.
    if (!std::exchange(etcd_unreachable_, true)) LogWarning("%s", leader.status().message());
    // The previous leader has lost its lease by now, or is about to.
    if (Now() - etcd_read_ >= options_.lease)
      standby_->Tell({"", absl::StrCat("etcd does not answer: ", leader.status().message()), true});
    return nullptr;
  }
  etcd_read_ = Now();
  if (std::exchange(etcd_unreachable_, false)) LogInfo("etcd answers again");
  if (!leader->empty()) why_none_.clear();
  standby_->Tell({*leader, why_none_, false});
  if (!leader->empty() || Now() < not_before_) return nullptr;
  absl::StatusOr<std::unique_ptr<Leadership>> taken = Leadership::TryTake(
      etcd_.get(), {options_.prefix, options_.advertise, options_.lease}, [lost] { *lost = true; });
  if (taken.ok()) {
    no_lead_ = absl::StatusCode::kOk;
    return *std::move(taken);
  }
  LogNoLead(taken.status());
  return nullptr;
}

// Deduplicates by code: etcd members report the same cause with different messages.
void Replica::LogNoLead(const absl::Status& why) {
  why_none_ = std::string(why.message());
  const bool known = std::exchange(no_lead_, why.code()) == why.code();
  if (known && Now() < no_lead_logged_at_ + kSayEvery) return;
  no_lead_logged_at_ = Now();
  LogWarning("cannot take leadership; retrying error=%s", why_none_);
}

void Replica::Run(const StopWaiter& stops) {
  std::string last_error;
  while (!stops(kAskEvery)) {
    std::atomic<bool> lost{false};
    std::unique_ptr<Leadership> leadership = TryLead(&lost);
    if (leadership == nullptr) continue;
    standby_.reset();
    const absl::Status led = Lead(stops, leadership.get(), lost);
    const std::string why(led.message());
    if (std::exchange(last_error, why) != why && !led.ok())
      LogError("cannot lead; returning to standby error=%s", why);
    etcd_read_ = Now();
    why_none_ = why;
    if (!led.ok()) not_before_ = Now() + kAfterFailure;
    leadership.reset();
    if (!StandByAgain(stops)) return;
  }
}

absl::Status Replica::Lead(const StopWaiter& stops, Leadership* leadership, const std::atomic<bool>& lost) {
  ServerOptions options = options_.server;
  options.reconciler.progress_every = kProgressEvery;
  options.reconciler.leads = [leadership] { return leadership->held(); };
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<Server> server, Server::Start(options, files_, [&] {
                           return EtcdStore::Open(etcd_.get(), options_.prefix, leadership);
                         }));
  LogInfo("leading generation=%d address=%s", leadership->generation(), options_.advertise);
  while (!lost && !stops(kLookEvery)) {
  }
  server->Stop();
  return absl::OkStatus();
}

}  // namespace fsdpd
