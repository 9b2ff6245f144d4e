// Command-line flags of the etcd store: --store, --etcd-ca, --etcd-cert, --etcd-key. Shared by the
// coordinator, backup and restore.
#pragma once

#include <absl/status/status.h>

#include <string>

#include "coordinator/store/etcd_client.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace fsdpd {

struct EtcdFlags {
  std::string store;  // As given; "" if the store is not etcd.
  EtcdOptions etcd;
  std::string prefix;  // "/fsdpd/"
};

// Parses "etcd://HOST:PORT,HOST:PORT/PREFIX". Errors: INVALID_ARGUMENT.
absl::Status ParseStore(const std::string& store, EtcdFlags* flags);

// `about`: purpose of --store, for its help. Returns the option.
CLI::Option* DeclareStore(CLI::App* app, const std::string& about, EtcdFlags* flags);
void DeclareEtcdFiles(CLI::App* app, CLI::Option* store, EtcdFlags* flags);

// The error in the combination of flags, or "".
std::string WhyNotReached(const EtcdFlags& flags);

}  // namespace fsdpd
