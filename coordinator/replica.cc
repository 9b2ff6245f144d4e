#include "coordinator/replica.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include <optional>
#include <utility>
#include <vector>

#include "base/address.h"
#include "base/check.h"
#include "base/log.h"
#include "base/mutex.h"
#include "coordinator/standby_api.h"
#include "coordinator/store/etcd_store.h"
#include "coordinator/store/leadership.h"

namespace fsdpd {
namespace {

constexpr absl::Duration kAskEvery = absl::Milliseconds(500);  // Whether anybody leads.
constexpr absl::Duration kLookEvery = absl::Milliseconds(100);

}  // namespace

absl::Status ParseStore(const std::string& store, ReplicaOptions* options) {
  absl::string_view rest = store;
  if (!absl::ConsumePrefix(&rest, "etcd://"))
    return absl::InvalidArgumentError(absl::StrCat("'", store, "' does not begin with etcd://"));
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(rest, absl::MaxSplits('/', 1));
  options->etcd.members = absl::StrSplit(parts.first, ',');
  for (const std::string& member : options->etcd.members) {
    if (const absl::StatusOr<HostPort> read = ParseHostPort(member); !read.ok()) return read.status();
  }
  const std::string name(absl::StripSuffix(parts.second, "/"));
  options->prefix = name.empty() ? "/fsdpd/" : absl::StrCat("/", name, "/");
  return absl::OkStatus();
}

// Serves while another one leads. The address of who does is told to it by Run().
class Replica::Standby {
 public:
  static absl::StatusOr<std::unique_ptr<Standby>> Open(EtcdClient* etcd, const std::string& prefix,
                                                       const FrontOptions& options) {
    FSDPD_ASSIGN_OR_RETURN(FrontSecurity security, SecureFront(options));
    std::unique_ptr<Standby> standby(new Standby(etcd, prefix, std::move(security)));
    FSDPD_ASSIGN_OR_RETURN(standby->front_,
                           OpenFront(options, standby->security_,
                                     {{&standby->api_, v1::Coordinator::service_full_name(), true},
                                      {&standby->agents_, v1::AgentLink::service_full_name(), false}}));
    return standby;
  }
  ~Standby() { front_.Stop(); }

  const std::string& address() const { return front_.address; }
  void Tell(const std::string& leader) {
    MutexLock lock(&mutex_);
    if (leader != leader_) LogInfo("standing by leader=%s", leader.empty() ? "nobody" : leader);
    leader_ = leader;
  }

 private:
  Standby(EtcdClient* etcd, const std::string& prefix, FrontSecurity security)
      : security_(std::move(security)),
        jobs_(etcd, prefix),
        gate_(security_.people.get(), [](const std::string&) { return std::nullopt; }),
        api_(&jobs_, &gate_, [this] { return leader(); }),
        agents_([this] { return leader(); }) {}
  std::string leader() {
    MutexLock lock(&mutex_);
    return leader_;
  }

  FrontSecurity security_;
  EtcdJobs jobs_;
  Gate gate_;
  Mutex mutex_;
  std::string leader_ ABSL_GUARDED_BY(mutex_);
  StandbyApi api_;
  StandbyAgents agents_;
  Front front_;
};

Replica::Replica(const ReplicaOptions& options) : options_(options) {}
Replica::~Replica() = default;

absl::StatusOr<std::unique_ptr<Replica>> Replica::Start(const ReplicaOptions& options) {
  std::unique_ptr<Replica> replica(new Replica(options));
  FSDPD_ASSIGN_OR_RETURN(replica->etcd_, EtcdClient::Make(options.etcd, options.server.clock->Wall()));
  // At the start alone: afterwards etcd may be away, and one that leads looks at it again.
  FSDPD_RETURN_IF_ERROR(EtcdJobs(replica->etcd_.get(), options.prefix).ReadSchema().status());
  FSDPD_RETURN_IF_ERROR(replica->StandBy());
  // The port that was picked is kept from now on.
  replica->options_.server.listen = replica->standby_->address();
  if (options.advertise.empty()) replica->options_.advertise = replica->standby_->address();
  return replica;
}

const std::string& Replica::address() const { return options_.server.listen; }

absl::Status Replica::StandBy() {
  FSDPD_ASSIGN_OR_RETURN(standby_, Standby::Open(etcd_.get(), options_.prefix, options_.server));
  return absl::OkStatus();
}

absl::Status Replica::Run(const StopWaiter& stops) {
  std::string trouble;
  while (!stops(kAskEvery)) {
    const absl::StatusOr<std::string> leader = Leadership::Leader(etcd_.get(), options_.prefix);
    if (!leader.ok()) {
      // Once per reason: members have words of their own.
      if (std::exchange(trouble, "away").empty()) LogWarning("%s", leader.status().message());
      continue;
    }
    if (!trouble.empty()) LogInfo("etcd answers again");
    trouble.clear();
    standby_->Tell(*leader);
    if (!leader->empty()) continue;
    std::atomic<bool> lost{false};
    absl::StatusOr<std::unique_ptr<Leadership>> taken = Leadership::TryTake(
        etcd_.get(), {options_.prefix, options_.advertise, options_.lease}, [&lost] { lost = true; });
    if (!taken.ok()) LogWarning("cannot take the lead: %s", taken.status().message());
    if (!taken.ok() || *taken == nullptr) continue;
    standby_.reset();
    const absl::Status led = Lead(stops, taken->get(), lost);
    // What may pass by itself: etcd was away, or another one leads already.
    if (!led.ok() && !absl::IsUnavailable(led)) return led;
    if (!led.ok()) LogWarning("cannot lead: %s", led.message());
    taken->reset();
    FSDPD_RETURN_IF_ERROR(StandBy());
  }
  return absl::OkStatus();
}

absl::Status Replica::Lead(const StopWaiter& stops, Leadership* leadership, const std::atomic<bool>& lost) {
  ServerOptions options = options_.server;
  options.reconciler.leads = [leadership] { return leadership->held(); };
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<Server> server, Server::Start(options, [&] {
                           return EtcdStore::Open(etcd_.get(), options_.prefix, leadership);
                         }));
  LogInfo("leading generation=%d address=%s", leadership->generation(), options_.advertise);
  while (!lost && !stops(kLookEvery)) {
  }
  server->Stop();
  return absl::OkStatus();
}

}  // namespace fsdpd
