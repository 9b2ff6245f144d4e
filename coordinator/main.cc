// fsdpd-coordinator: flags, signals, exit codes. 0 after a clean stop, 1 for a runtime error, 2 for a usage
// error.
#include <grpc/support/log.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>

#include "base/address.h"
#include "base/log.h"
#include "base/version.h"
#include "coordinator/server.h"

namespace fsdpd {
namespace {

struct Flags {
  ServerOptions server;
  std::string port_file;
  int64_t tick_ms = 100;
  int64_t reattach_grace_ms = 15000;
};

// Says what is wrong, or "".
std::string CheckListen(const std::string& address) {
  return std::string(ParseHostPort(address).status().message());
}

// gRPC prints what it cannot do, before it says so to its caller, who says it better.
void SilenceGrpc() {
  if (getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function([](gpr_log_func_args*) {});
}

void Describe(CLI::App* app, Flags* flags) {
  app->set_version_flag("--version", std::string("fsdpd-coordinator ") + kVersion);
  app->add_option("--listen", flags->server.listen, "HOST:PORT to serve on; port 0 picks one")
      ->capture_default_str()
      ->check(CheckListen);
  app->add_option("--state-dir", flags->server.state_dir,
                  "Directory for the durable state; made where missing")
      ->required();
  app->add_option("--port-file", flags->port_file, "File that gets HOST:PORT once calls are served");
  app->add_option("--tick-ms", flags->tick_ms, "How often jobs are reconciled without an event")
      ->capture_default_str()
      ->check(CLI::Range(1, 10000));
  app->add_option("--reattach-grace-ms", flags->reattach_grace_ms,
                  "How long agents may take to come back after the coordinator restarted or stood still")
      ->capture_default_str()
      ->check(CLI::Range(0, 3600000));
}

// Readers see the whole line or no file.
bool WritePortFile(const std::string& path, const std::string& address) {
  const std::string temporary = path + ".tmp";
  FILE* file = fopen(temporary.c_str(), "w");
  if (file == nullptr) return false;
  const bool written = fprintf(file, "%s\n", address.c_str()) > 0;
  return fclose(file) == 0 && written && rename(temporary.c_str(), path.c_str()) == 0;
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

int Run(const Flags& flags) {
  const sigset_t signals = BlockStopSignals();
  SilenceGrpc();
  auto server = Server::Start(flags.server);
  if (!server.ok()) {
    LogError("cannot start: %s", server.status().ToString());
    return 1;
  }
  const std::string address = (*server)->address();
  if (!flags.port_file.empty() && !WritePortFile(flags.port_file, address)) {
    LogError("cannot write the port file path=%s error=%s", flags.port_file, strerror(errno));
    return 1;
  }
  LogInfo("serving address=%s state_dir=%s version=%s", address, flags.server.state_dir, kVersion);
  int signal = 0;
  sigwait(&signals, &signal);
  LogInfo("stopping signal=%d", signal);
  (*server)->Stop();
  return 0;
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Takes training jobs and drives the agents that run them.", "fsdpd-coordinator");
  Describe(&app, &flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  flags.server.reconciler.tick = absl::Milliseconds(flags.tick_ms);
  flags.server.reconciler.reattach_grace = absl::Milliseconds(flags.reattach_grace_ms);
  SetLogName("coordinator");
  return Run(flags);
}

}  // namespace
}  // namespace fsdpd

int main(int argc, char** argv) { return fsdpd::Main(argc, argv); }
