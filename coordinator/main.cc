// fsdpd-coordinator: flags, signals and exit codes. The exit code is 0 after a clean stop, 1 for a runtime
// error, and 2 for a usage error, including a file of the command line that cannot be opened.
#include <absl/strings/str_cat.h>
#include <absl/synchronization/mutex.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/errno_status.h"
#include "base/log.h"
#include "base/net/address.h"
#include "base/process/cli_app.h"
#include "base/process/file_flags.h"
#include "base/process/open_files.h"
#include "base/process/uncaught.h"
#include "base/version.h"
#include "coordinator/access/audit_log.h"
#include "coordinator/serve/backup_command.h"
#include "coordinator/serve/etcd_flags.h"
#include "coordinator/serve/refused_handshakes.h"
#include "coordinator/serve/replica.h"
#include "coordinator/serve/server.h"

namespace fsdpd {
namespace {

struct Flags {
  ServerOptions server;
  ReplicaOptions replica;  // With --store.
  EtcdFlags etcd;
  int64_t lease_s = 5;
  std::string port_file;
  std::string metrics_port_file;
  int64_t tick_ms = 100;
  int64_t reattach_grace_ms = 15000;
  bool insecure = false;
  int64_t audit_log_mib = 64;
  int64_t keep_ended_jobs = Retention().jobs;
  int64_t keep_ended_days = 0;
  std::string preflight = "cuda";
  int64_t preflight_limit_s = 120;
  std::vector<std::string> preflight_floors;
};

// Returns the error, or "".
std::string CheckListen(const std::string& address) {
  return std::string(ParseHostPort(address).status().message());
}

void DeclareSecurityFlags(CLI::App* app, Flags* flags) {
  ServerOptions& server = flags->server;
  CLI::Option* insecure = app->add_flag("--insecure", flags->insecure,
                                        "Serve plaintext without authentication, on a loopback address only");
  const auto file = [&](const char* name, std::string* path, const char* about) {
    app->add_option(name, *path, about)->type_name("FILE")->excludes(insecure);
  };
  file("--tls-cert", &server.tls.certificate, "Serve with this certificate chain, in PEM");
  file("--tls-key", &server.tls.key, "Use this private key of --tls-cert; TLS files are reread on change");
  file("--tls-client-ca", &server.tls.trusted, "Accept agents' certificates that these CAs signed");
  file("--tokens", &server.tokens, "Accept the tokens in this file (`fsdpctl token new`); reread on change");
  file("--revoked-certs", &server.revoked_certs,
       "Reject agents' certificates with these serial numbers; reread on change");
  app->add_option("--health-listen", server.health_listen,
                  "Serve only health checks on HOST:PORT, in plaintext, for probes without TLS")
      ->check(CheckListen);
  app->add_option("--web-listen", server.web_listen,
                  "Serve the web UI on HOST:PORT; HTTPS, or plaintext with --insecure")
      ->check(CheckListen);
  app->add_option("--audit-log", server.audit_log,
                  "Append a JSON line to this file for each call with side effects")
      ->type_name("FILE");
  app->add_option("--audit-log-mib", flags->audit_log_mib,
                  absl::StrCat("Rotate the audit log to FILE.1 at this size; keep the last ", kMaxAuditFiles))
      ->capture_default_str()
      ->check(InRange(1, 1 << 20));
}

// Checks combinations of flags; returns the error, or "".
std::string CheckSecurityFlags(const Flags& flags) {
  const ServerOptions& server = flags.server;
  if (flags.insecure) {
    for (const std::string& address : {server.listen, server.web_listen}) {
      const absl::StatusOr<HostPort> listen = ParseHostPort(address);
      if (address.empty() || (listen.ok() && IsLoopback(*listen))) continue;
      return absl::StrCat("--insecure: ", address,
                          " is not a loopback address; listen on 127.0.0.1, or use TLS");
    }
    return "";
  }
  for (const auto& [flag, value] :
       {std::pair("--tls-cert", &server.tls.certificate), std::pair("--tls-key", &server.tls.key),
        std::pair("--tls-client-ca", &server.tls.trusted), std::pair("--tokens", &server.tokens)}) {
    if (value->empty()) {
      return absl::StrCat(flag, " is required, or --insecure on a loopback address");
    }
  }
  return "";
}

// Returns the error, or "".
std::string CheckFloor(const std::string& text) {
  return std::string(ParsePreflightFloor(text).status().message());
}

void DeclarePreflightFlags(CLI::App* app, Flags* flags) {
  app->add_option("--preflight", flags->preflight,
                  "Measure these nodes before jobs run there, at most once a day")
      ->capture_default_str()
      ->check(OneOf({"cuda", "all", "off"}));
  app->add_option("--preflight-limit-seconds", flags->preflight_limit_s,
                  "Fail a preflight that takes longer than this")
      ->capture_default_str()
      ->check(InRange(1, 3600));
  app->add_option("--preflight-floor", flags->preflight_floors,
                  "Cordon nodes with a device below this number; repeatable, 0: no floor")
      ->type_name("DEVICE:MEASURE=NUMBER")
      ->check(CheckFloor);
}

void DeclareStoreFlags(CLI::App* app, Flags* flags) {
  ReplicaOptions& replica = flags->replica;
  CLI::Option* const store =
      DeclareStore(app, "Share the state in etcd with other coordinators", &flags->etcd);
  app->add_option("--advertise", replica.advertise,
                  "Advertise HOST:PORT to agents, clients and replicas; default: --listen")
      ->check(CheckListen)
      ->needs(store);
  app->add_option("--leader-lease-seconds", flags->lease_s,
                  "Duration of the leader lease: another coordinator leads if it is not renewed")
      ->capture_default_str()
      ->check(InRange(2, 60))
      ->needs(store);
  DeclareEtcdFiles(app, store, &flags->etcd);
}

// Returns the error, or "". If two coordinators both advertise all addresses, agents cannot reach either.
std::string CheckAdvertise(const Flags& flags) {
  const std::string& given = flags.replica.advertise;
  const absl::StatusOr<HostPort> address = ParseHostPort(given.empty() ? flags.server.listen : given);
  if (!address.ok()) return "";
  const bool all = address->host == "0.0.0.0" || address->host == "::";
  if (given.empty())
    return all ? "--advertise is required with --store if --listen is a wildcard address" : "";
  if (all)
    return absl::StrCat("--advertise: ", given,
                        " is a wildcard address; use a host that other machines can reach");
  return address->port == 0 ? absl::StrCat("--advertise: ", given,
                                           " has port 0; use the port that other machines connect to")
                            : "";
}

// Checks combinations of flags; returns the error, or "".
std::string CheckMetricsFlags(const Flags& flags) {
  const bool nowhere = flags.server.metrics_listen.empty() && !flags.metrics_port_file.empty();
  return nowhere ? "--metrics-port-file requires --metrics-listen" : "";
}

// Checks combinations of flags; returns the error, or "".
std::string CheckStateFlags(const Flags& flags) {
  if (flags.etcd.store.empty()) {
    return flags.server.state_dir.empty() ? "--state-dir is required, or --store for several coordinators"
                                          : "";
  }
  if (!flags.server.state_dir.empty()) return "--state-dir is not supported with --store";
  if (std::string wrong = WhyNotReached(flags.etcd); !wrong.empty()) return wrong;
  return CheckAdvertise(flags);
}

void DeclareFlags(CLI::App* app, Flags* flags) {
  app->set_version_flag("--version", std::string("fsdpd-coordinator ") + kVersion);
  app->add_option("--listen", flags->server.listen, "Serve on HOST:PORT; port 0 picks one")
      ->capture_default_str()
      ->check(CheckListen);
  app->add_option("--state-dir", flags->server.state_dir,
                  "Store the state in this directory, created if missing; or use --store");
  DeclareStoreFlags(app, flags);
  app->add_option("--port-file", flags->port_file, "Write HOST:PORT to this file once calls are served");
  app->add_option("--metrics-listen", flags->server.metrics_listen,
                  "Serve /metrics on HOST:PORT, in plaintext; port 0 picks one; default: off")
      ->check(CheckListen);
  app->add_option("--metrics-port-file", flags->metrics_port_file,
                  "Write HOST:PORT of /metrics to this file once it is served");
  app->add_option("--tick-ms", flags->tick_ms, "Reconcile jobs at this interval without an event")
      ->capture_default_str()
      ->check(InRange(1, 10000));
  app->add_option("--reattach-grace-ms", flags->reattach_grace_ms,
                  "Wait this long for agents to reconnect after a restart or suspension")
      ->capture_default_str()
      ->check(InRange(0, 3600000));
  DeclareSecurityFlags(app, flags);
  DeclarePreflightFlags(app, flags);
  app->add_option("--quotas", flags->server.quotas,
                  "Limit ranks by project with lines PROJECT RANKS; reread on change")
      ->type_name("FILE");
  app->add_option("--keep-ended-jobs", flags->keep_ended_jobs,
                  "Keep this many ended jobs, newest first; others are deleted with their logs")
      ->capture_default_str()
      ->check(InRange(1, 10000000));
  app->add_option("--keep-ended-days", flags->keep_ended_days,
                  "Keep ended jobs at most this many days; 0: no limit by age")
      ->capture_default_str()
      ->check(InRange(0, 36500));
}

PreflightPolicy PolicyOf(const Flags& flags) {
  PreflightPolicy policy;
  if (flags.preflight != "off") policy.devices.insert(v1::DEVICE_CUDA);
  if (flags.preflight == "all") policy.devices.insert(v1::DEVICE_CPU);
  policy.limit = absl::Seconds(flags.preflight_limit_s);
  for (const std::string& text : flags.preflight_floors)
    policy.floors.push_back(*ParsePreflightFloor(text));  // Valid: CheckFloor() was applied.
  return policy;
}

// Atomic: readers see the whole line or no file.
absl::Status WritePortFile(const std::string& path, const std::string& address) {
  const std::string temporary = path + ".tmp";
  FILE* file = fopen(temporary.c_str(), "w");
  if (file == nullptr) return ErrnoStatus(path);
  const bool written = fprintf(file, "%s\n", address.c_str()) > 0;
  if (fclose(file) == 0 && written && rename(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  const absl::Status failed = ErrnoStatus(path);
  unlink(temporary.c_str());
  return failed;
}

// Blocked before any thread exists, so that every thread inherits it and only sigwait() sees the signals.
sigset_t BlockStopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

std::vector<FileFlag> FilesOf(const Flags& flags) {
  const ServerOptions& server = flags.server;
  const TlsFiles& etcd = flags.etcd.etcd.tls;
  return {{"--tls-cert", server.tls.certificate},    {"--tls-key", server.tls.key},
          {"--tls-client-ca", server.tls.trusted},   {"--tokens", server.tokens},
          {"--revoked-certs", server.revoked_certs}, {"--quotas", server.quotas},
          {"--audit-log", server.audit_log},         {"--etcd-ca", etcd.trusted},
          {"--etcd-cert", etcd.certificate},         {"--etcd-key", etcd.key},
          {"--port-file", flags.port_file},          {"--metrics-port-file", flags.metrics_port_file}};
}

int ReportStartError(const Flags& flags, const absl::Status& status) {
  const std::vector<FileFlag> files = FilesOf(flags);
  LogError("cannot start: %s", WithFlag(files, status));
  return IsWrongPath(files, status) ? 2 : 1;
}

// Returns 0, or the exit code if the coordinator cannot serve.
int Serving(const Flags& flags, const std::string& address, const std::string& metrics) {
  // The metrics file is written first: a reader of the port file finds both.
  for (const auto& [path, text] :
       {std::pair(&flags.metrics_port_file, &metrics), std::pair(&flags.port_file, &address)}) {
    if (path->empty()) continue;
    if (const absl::Status written = WritePortFile(*path, *text); !written.ok())
      return ReportStartError(flags, written);
  }
  LogInfo("serving address=%s state=%s metrics=%s version=%s", address,
          flags.etcd.store.empty() ? flags.server.state_dir
                                   : absl::StrCat(flags.etcd.store, " below ", flags.etcd.prefix),
          metrics.empty() ? "off" : metrics, kVersion);
  if (flags.insecure)
    LogWarning("--insecure: plaintext without authentication; any process on this machine has full access");
  return 0;
}

int RunSingle(const Flags& flags, const sigset_t& signals) {
  auto server = Server::Start(flags.server);
  if (!server.ok()) return ReportStartError(flags, server.status());
  if (const int code = Serving(flags, (*server)->address(), (*server)->metrics_endpoint()); code != 0)
    return code;
  int signal = 0;
  sigwait(&signals, &signal);
  LogInfo("stopping signal=%d", signal);
  (*server)->Stop();
  return 0;
}

int RunReplica(const Flags& flags, const sigset_t& signals) {
  ReplicaOptions options = flags.replica;
  options.server = flags.server;
  options.lease = absl::Seconds(flags.lease_s);
  options.etcd = flags.etcd.etcd;
  options.prefix = flags.etcd.prefix;
  const auto replica = Replica::Start(options);
  if (!replica.ok()) return ReportStartError(flags, replica.status());
  if (const int code = Serving(flags, (*replica)->address(), (*replica)->metrics_endpoint()); code != 0)
    return code;
  bool stopped = false;
  (*replica)->Run([&](absl::Duration wait) {
    const timespec limit = absl::ToTimespec(wait);
    if (stopped) return true;
    const int signal = sigtimedwait(&signals, nullptr, &limit);
    stopped = signal > 0;
    if (stopped) LogInfo("stopping signal=%d", signal);
    return stopped;
  });
  return 0;
}

int Main(int argc, char** argv) {
  if (IsBackupCommand(argc, argv)) return RunBackupCommand(argc, argv);
  Flags flags;
  const std::unique_ptr<CLI::App> app =
      MakeApp("Schedule training jobs and control the agents that run them.", "fsdpd-coordinator");
  app->footer("Save and restore the state: fsdpd-coordinator backup --help, restore --help.");
  DeclareFlags(app.get(), &flags);
  if (const std::optional<int> code = ParseArguments(app.get(), argc, argv); code.has_value()) return *code;
  for (const std::string& wrong :
       {CheckStateFlags(flags), CheckSecurityFlags(flags), CheckMetricsFlags(flags)}) {
    if (wrong.empty()) continue;
    fprintf(stderr, "%s [INVALID_FLAG]\n", wrong.c_str());
    return 2;
  }
  flags.server.audit_log_bytes = flags.audit_log_mib << 20;
  flags.server.reconciler.tick = absl::Milliseconds(flags.tick_ms);
  flags.server.reconciler.reattach_grace = absl::Milliseconds(flags.reattach_grace_ms);
  flags.server.reconciler.retention.jobs = flags.keep_ended_jobs;
  flags.server.reconciler.preflight = PolicyOf(flags);
  if (flags.keep_ended_days > 0)
    flags.server.reconciler.retention.time = absl::Hours(24 * flags.keep_ended_days);
  SetLogName("coordinator");
  LogUncaught();
  // Debian's Abseil detects cycles of locks, including gRPC's, under one process-wide lock.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  RaiseOpenFiles();
  signal(SIGPIPE, SIG_IGN);  // The reader of the log pipe may end first; jobs must not end with it.
  signal(SIGXFSZ, SIG_IGN);  // A file size limit becomes an error of the write.
  const sigset_t signals = BlockStopSignals();
  LogFailedHandshakes();
  return flags.etcd.store.empty() ? RunSingle(flags, signals) : RunReplica(flags, signals);
}

}  // namespace
}  // namespace fsdpd

int main(int argc, char** argv) { return fsdpd::Main(argc, argv); }
