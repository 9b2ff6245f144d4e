#include "coordinator/serve/server.h"

#include <mutex>
#include <vector>

#include "base/check.h"
#include "coordinator/access/authorizer.h"
#include "coordinator/agents/agent_service.h"
#include "coordinator/agents/timeline_board.h"
#include "coordinator/api/guarded_api.h"
#include "coordinator/attempt/slot_count.h"
#include "coordinator/store/measured_store.h"
#include "coordinator/store/sqlite_store.h"
#include "fsdp/plan/plan.h"

namespace fsdpd {

struct Server::Parts {
  Parts(const ServerOptions& options, const ServerFiles& given, std::unique_ptr<StateStore> opened)
      : files(given),
        store(Measured(std::move(opened), given.page->meters())),
        nodes(store->generation(), options.clock),
        logs(&nodes),
        admission([this] { return IdleSlots(nodes.Snapshot()); }),
        reconciler(options.reconciler,
                   {store.get(), &nodes, &rendezvous, &board, options.clock,
                    [](const v1::JobSpec& spec, int64_t budget) { return MakePlan(spec, budget); },
                    [file = files.quotas.get()] { return file == nullptr ? RanksByProject() : file->Read(); },
                    given.page->meters()}),
        handlers({&admission, store.get(), &board, &reconciler, &nodes, &logs, &traces, &timelines,
                  options.clock, given.page->meters()}),
        authorizer(
            files.security.tokens.get(),
            [this](const std::string& id) { return handlers.jobs.SubmitterOf(id); },
            files.security.revoked.get()),
        api(&handlers, {&authorizer, files.security.audit.get(), options.clock, files.page->meters()}),
        agents({{&nodes, &reconciler, &rendezvous, &logs, &traces, &timelines, given.page->meters()},
                &authorizer,
                files.security.audit.get(),
                options.clock}) {}

  const ServerFiles files;
  const std::unique_ptr<StateStore> store;
  NodeRegistry nodes;
  Rendezvous rendezvous;
  JobBoard board;
  LogRelay logs;
  TraceRelay traces;
  TimelineBoard timelines{&board};
  Admission admission;
  Reconciler reconciler;
  ApiHandlers handlers;
  Authorizer authorizer;
  GuardedApi api;
  AgentService agents;
  PublicServer listener;
  std::once_flag stopped;
};

Server::Server(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Server::~Server() { Stop(); }

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  FSDPD_ASSIGN_OR_RETURN(const ServerFiles files, OpenFiles(options));
  return Start(options, files, [&options] { return SqliteStore::Open(options.state_dir); });
}

absl::StatusOr<ServerFiles> Server::OpenFiles(const ServerOptions& options) {
  ServerFiles files;
  FSDPD_ASSIGN_OR_RETURN(files.security, SecurePublicServer(options));
  if (!options.quotas.empty()) {
    FSDPD_ASSIGN_OR_RETURN(files.quotas, QuotaFile::Open(options.quotas, options.clock));
  }
  files.page = std::make_shared<MetricsPage>(options.clock, files.security.revoked, files.security.audit);
  files.page->ExportFiles([tls = options.tls, port = files.security.port, tokens = files.security.tokens,
                           quotas = files.quotas, revoked = files.security.revoked] {
    std::vector<MetricsPage::FileState> states;
    if (port != nullptr) {
      const auto [newest, fault] = port->NewestAndError();
      const TlsIdentity used = newest.value_or(TlsIdentity());
      states = TlsFileStates({"--tls-client-ca", "--tls-cert", "--tls-key"}, tls, fault, used.not_after,
                             used.trusted_not_after);
    }
    if (tokens != nullptr) states.push_back({"--tokens", tokens->Stale()});
    if (quotas != nullptr) states.push_back({"--quotas", quotas->Stale()});
    if (revoked != nullptr) states.push_back({"--revoked-certs", revoked->Stale()});
    return states;
  });
  if (!options.metrics_listen.empty()) FSDPD_RETURN_IF_ERROR(files.page->Serve(options.metrics_listen));
  return files;
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options, const ServerFiles& files,
                                                      const OpenStore& open) {
  FSDPD_ASSIGN_OR_RETURN(std::unique_ptr<StateStore> store, open());
  auto parts = std::make_unique<Parts>(options, files, std::move(store));
  FSDPD_RETURN_IF_ERROR(parts->reconciler.Load());
  FSDPD_ASSIGN_OR_RETURN(parts->listener,
                         OpenPublicServer(options, files.security,
                                          {{&parts->api, v1::Coordinator::service_full_name(), true},
                                           {&parts->agents, v1::AgentLink::service_full_name(), true}}));
  parts->reconciler.Start();
  parts->files.page->Show({&parts->board, &parts->nodes, &parts->reconciler, &parts->store->events(),
                           options.state_dir, parts->store->generation()});
  return std::unique_ptr<Server>(new Server(std::move(parts)));
}

std::string Server::address() const { return parts_->listener.address; }
std::string Server::metrics_endpoint() const { return parts_->files.page->endpoint(); }
std::string Server::page_url() const {
  return parts_->listener.web == nullptr ? "" : parts_->listener.web->url();
}

void Server::Stop() {
  std::call_once(parts_->stopped, [this] {
    parts_->files.page->Hide();
    parts_->api.Close();
    parts_->board.Close();
    // First: otherwise it would consider agents lost when their streams end below. Agents resend what they
    // report meanwhile.
    parts_->reconciler.Stop();
    parts_->listener.Stop();  // After its grace agents' streams are cancelled, which ends the reads.
  });
}

}  // namespace fsdpd
